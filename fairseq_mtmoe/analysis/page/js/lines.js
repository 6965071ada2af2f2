// Lines over updates, tokens, minutes or epochs, in one panel or in several beside each other.
//
// A panel: {title, unit, log, lines: [{name, run, points: [[x, y], …], color, dash, width, end}], marks: [{x, text, color}]}.

const AXES = {update: 'updates', tokens: 'target tokens', minutes: 'minutes of training', epoch: 'epochs'};
const AT = {
  update: value => `update ${number(value, 12)}`,
  tokens: value => `${short(value)} tokens`,
  minutes: value => `${number(value)} minutes`,
  epoch: value => `epoch ${number(value, 12)}`,
};
const GAP = 46;

const NICE = [1, 1.5, 2, 3, 4, 5, 7];
const logTicks = (low, high, most) => {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    found.push(...NICE.map(one => one * 10 ** power).filter(one => one >= low * 0.999 && one <= high * 1.001));
  }
  const step = Math.ceil(found.length / most);
  return found.filter((_, at) => at % step === 0).map(Math.log10);
};

const seen = (line, zoom) => line.points.filter(([x, y]) => y != null && (!zoom || (x >= zoom[0] && x <= zoom[1])));

const valueAxis = (panel, zoom, height, rest) => {
  const values = panel.lines.flatMap(line => seen(line, zoom).map(point => point[1])).filter(y => !panel.log || y > 0);
  const ticks = panel.format === percent ? value => `${short(100 * value)} %` : short;
  const common = {
    ...rest,
    type: 'value',
    scale: true,
    name: panel.unit,
    nameLocation: 'end',
    nameGap: 8,
    nameTextStyle: {align: 'left', color: colour('soft'), fontSize: 11},
    axisLine: {show: false},
    splitLine: {lineStyle: {color: colour('grid')}},
    axisLabel: {color: colour('soft'), formatter: ticks, hideOverlap: true},
    axisTick: {show: false},
  };
  if (!panel.log || !values.length) return {...common, splitNumber: Math.max(2, Math.round(height / 60))};
  const [low, high] = rangeOf(values);
  const customValues = logTicks(low, high, Math.max(3, height / 36));
  return {
    ...common,
    min: Math.log10(low) - 0.01,
    max: Math.log10(high) + 0.01,
    splitLine: {show: true, ...common.splitLine},
    axisTick: {show: false, customValues},
    axisLabel: {...common.axisLabel, customValues, formatter: value => ticks(10 ** value)},
  };
};

const placeOf = (at, panels, width, height, margins) => {
  const columns = columnsOf(panels, width),
    rows = Math.ceil(panels / columns);
  const wide = width / columns,
    high = (height - margins.below) / rows;
  return {
    left: (at % columns) * wide + 52,
    width: wide - 52 - margins.right,
    top: Math.floor(at / columns) * high + 40,
    height: high - 40 - 34,
  };
};

// As few rows as there is room for, and rows that are about equally long: four panels are two and two.
const columnsOf = (panels, width) => {
  const most = Math.max(1, Math.min(panels, 3, Math.floor(width / 300)));
  return Math.ceil(panels / Math.ceil(panels / most)) || 1;
};

const heightOf = (panels, width, zoomable) => {
  const rows = Math.ceil(panels / columnsOf(panels, width));
  return (panels === 1 ? Math.min(430, Math.max(270, width * 0.45)) : 215 * rows) + (zoomable ? 36 : 0);
};

const endLabel = (line, few) => ({
  show: Boolean(few && line.end),
  formatter: () => line.end,
  color: line.color,
  distance: 6,
  fontWeight: 600,
  fontSize: 11.5,
  width: 104,
  overflow: 'truncate',
});

const seriesOf = (panel, at, ends) =>
  panel.lines.map((line, number) => ({
    type: 'line',
    name: line.name,
    xAxisIndex: at,
    yAxisIndex: at,
    symbol: 'circle',
    symbolSize: 5,
    showSymbol: line.points.length < 40,
    connectNulls: true,
    z: line.width > 2 ? 3 : 2,
    data: panel.log ? line.points.map(([x, y]) => [x, y > 0 ? Math.log10(y) : null]) : line.points,
    lineStyle: {width: line.width ?? 1.8, type: line.dash ?? 'solid', color: line.color},
    itemStyle: {color: line.color},
    emphasis: {disabled: true},
    endLabel: endLabel(line, ends),
    markLine:
      number || !panel.marks?.length
        ? undefined
        : {
            silent: true,
            symbol: 'none',
            animation: false,
            data: panel.marks.map(mark => ({
              xAxis: mark.x,
              lineStyle: {color: mark.color, type: [3, 3], width: 1},
              label: {
                show: true,
                formatter: () => mark.text,
                position: 'end',
                rotate: 0,
                distance: 4,
                color: colour('soft'),
                fontSize: 10.5,
              },
            })),
          },
  }));

const linesTip = (panels, x) => items => {
  const list = [items].flat(),
    first = list[0];
  const panel = panels[first.axisIndex ?? 0];
  const lines = list
    .filter(item => item.value?.[1] != null)
    .map(item => {
      const value = panel.log ? 10 ** item.value[1] : item.value[1];
      return [item.color, item.seriesName, (panel.format ?? number)(value)];
    });
  return tip(`${panel.title ? `${panel.title}, ` : ''}${AT[x](first.axisValue ?? first.value[0])}`, lines);
};

const hasEnds = ({panels, ends}, width) =>
  Boolean(ends) && panels.length === 1 && width > 520 && panels[0].lines.length <= 24;

// Which line is which, where names do not stand at their ends. Those of runs are in the bar at the top, but on paper.
const BORDERS = new Map([
  ['solid', 'solid'],
  [DASHES[1], 'dashed'],
  [DASHES[2], 'dotted'],
]);
const lineKey = (view, width) => {
  const lines = new Map(view.panels.flatMap(panel => panel.lines).map(line => [line.name, line]));
  if (lines.size < 2 || hasEnds(view, width)) return [];
  return [...lines.values()].map(line => {
    const mark = el('i', {});
    mark.style.borderTop = `3px ${BORDERS.get(line.dash ?? 'solid') ?? 'dashed'} ${line.color}`;
    return el('li', {}, mark, named(line.name));
  });
};

const linesOption = ({panels, x, zoom, zoomable, ends}, width, height) => {
  const some = panels.flatMap(panel => panel.lines);
  const label = hasEnds({panels, ends}, width);
  const margins = {right: label ? 112 : 18, below: zoomable ? 36 : 0};
  const places = panels.map((_, at) => placeOf(at, panels.length, width, height, margins));
  const all = some.flatMap(line => line.points.map(point => point[0])).filter(value => value != null);
  const span = all.length ? rangeOf(all) : [0, 1];
  return {
    title: panels.map((panel, at) => ({
      text: panel.title ?? '',
      left: places[at].left - 44,
      top: places[at].top - 40,
      textStyle: {
        fontSize: 12.5,
        fontWeight: 600,
        color: colour('ink'),
        width: places[at].width + 40,
        overflow: 'truncate',
      },
    })),
    grid: places,
    xAxis: panels.map((_, at) => ({
      gridIndex: at,
      type: 'value',
      min: span[0],
      max: span[1] > span[0] ? span[1] : span[0] + 1,
      name: panels.length === 1 ? AXES[x] : '',
      nameLocation: 'middle',
      nameGap: 22,
      axisLine: {onZero: false, lineStyle: {color: colour('line')}},
      splitLine: {show: false},
      splitNumber: Math.max(2, Math.floor(places[at].width / 90)),
      minInterval: x === 'epoch' ? 1 : 0,
      axisTick: {lineStyle: {color: colour('line')}},
      axisLabel: {color: colour('soft'), formatter: short, hideOverlap: true, showMaxLabel: false},
      nameTextStyle: {color: colour('soft'), fontSize: 11},
    })),
    yAxis: panels.map((panel, at) => valueAxis(panel, zoom, places[at].height, {gridIndex: at})),
    tooltip: {
      trigger: 'axis',
      ...tooltipLook(),
      formatter: linesTip(panels, x),
      axisPointer: {type: 'line', lineStyle: {color: colour('soft'), type: 'solid', width: 1}, label: {show: false}},
    },
    dataZoom: zoomable
      ? [
          {
            type: 'slider',
            show: !printing.now,
            xAxisIndex: 'all',
            height: 16,
            bottom: 4,
            left: 52,
            right: margins.right,
            filterMode: 'filter',
            startValue: zoom?.[0],
            endValue: zoom?.[1],
            showDetail: false,
            brushSelect: true,
            showDataShadow: false,
            borderColor: colour('line'),
            fillerColor: colour('filler'),
            backgroundColor: 'transparent',
            handleStyle: {color: colour('paper'), borderColor: colour('soft')},
            moveHandleSize: 0,
          },
        ]
      : [],
    series: panels.flatMap((panel, at) => seriesOf(panel, at, label)),
  };
};

// Moves names at the ends of lines apart, which may end at the same height.
const NAME_HEIGHT = 14;
const spreadEnds = (echart, panel) => {
  const ends = panel.lines.map((line, at) => {
    const last = line.points.findLast(([, y]) => y != null && (!panel.log || y > 0));
    const point = last && [last[0], panel.log ? Math.log10(last[1]) : last[1]];
    return point ? {at, y: echart.convertToPixel({gridIndex: 0}, point)[1]} : null;
  });
  const known = ends.filter(end => end).sort((a, b) => a.y - b.y);
  known.forEach((end, at) => {
    end.to = at ? Math.max(end.y, known[at - 1].to + NAME_HEIGHT) : end.y;
  });
  const lost = known.length ? mean(known.map(end => end.to - end.y)) : 0;
  const series = panel.lines.map((_, at) => ({
    endLabel: {offset: [0, ends[at] ? ends[at].to - ends[at].y - lost : 0]},
  }));
  echart.setOption({series});
  echart.getZr().flush();
};

// A chart of lines. `view()` says what to draw: {panels, x, zoom, zoomable, ends}; `onzoom` hears of a new range of x.
const lineChart = ({id, label, view, table, onzoom}) => {
  const at = {series: 0, point: -1};
  const flat = () => view().panels.flatMap(panel => panel.lines.map(line => ({panel, line})));
  const move = (series, point) => chart => {
    const lines = flat();
    if (!lines.length) return;
    at.series = Math.min(Math.max(at.series + series, 0), lines.length - 1);
    const {panel, line} = lines[at.series];
    at.point = Math.min(Math.max(at.point + point, 0), line.points.length - 1);
    if (!line.points.length) return;
    const [where, value] = line.points[at.point];
    chart.act({type: 'showTip', seriesIndex: at.series, dataIndex: at.point});
    tell(
      `${panel.title ? `${panel.title}, ` : ''}${line.name}, ${AT[view().x](where)}: ${(panel.format ?? number)(value) || 'no value'}`,
    );
  };
  const narrow = factor => () => {
    const points = flat()
      .flatMap(({line}) => line.points.map(point => point[0]))
      .filter(value => value != null);
    const whole = rangeOf(points);
    const [low, high] = view().zoom ?? whole;
    const middle = flat()[at.series]?.line.points[at.point]?.[0] ?? (low + high) / 2,
      half = ((high - low) * factor) / 2;
    onzoom(factor ? [Math.max(whole[0], middle - half), Math.min(whole[1], middle + half)] : null);
  };
  const zooming = onzoom ? {'+': narrow(0.5), '-': narrow(2), 0: narrow(0)} : {};
  const chart = new Chart({
    id,
    label,
    table,
    keys: {
      ...walking(move),
      Escape: one => one.act({type: 'hideTip'}),
      ...zooming,
    },
    height: width => heightOf(view().panels.length, width, view().zoomable),
    option: (width, height) => linesOption(view(), width, height),
  });
  const key = el('ul', {class: 'key'});
  chart.plot.before(key);
  chart.drawn = width => {
    if (hasEnds(view(), width)) spreadEnds(chart.echart, view().panels[0]);
    key.replaceChildren(...lineKey(view(), width));
    key.classList.toggle(
      'runs',
      view()
        .panels.flatMap(panel => panel.lines)
        .every(line => facts.runs[line.run]?.name === line.name),
    );
  };
  if (onzoom) hearZoom(chart, onzoom);
  return chart;
};

// Tells of a range when the reader lets go of it: drawing before would take it out of the hand.
const hearZoom = (chart, onzoom) => {
  let range = null,
    held = false;
  const letGo = () => {
    held = false;
    if (range) onzoom(range);
    range = null;
  };
  chart.plot.addEventListener('pointerdown', () => {
    held = true;
  });
  addEventListener('pointerup', () => setTimeout(letGo));
  chart.begun = echart =>
    echart.on('datazoom', () => {
      const {startValue, endValue} = echart.getOption().dataZoom[0];
      range = [startValue, endValue];
      if (!held) letGo();
    });
};

// Behind lines: a row for each x, a column for each line. Runs have their own moments, so a line may have no value there.
const linesTable = (caption, view) => {
  const {panels, x} = view();
  const lines = panels.flatMap(panel => panel.lines.map(line => ({...line, title: [panel.title, line.name]})));
  const at = new Map();
  lines.forEach((line, column) =>
    line.points.forEach(([where, value]) => {
      if (where == null) return;
      if (!at.has(where)) at.set(where, Array(lines.length).fill(null));
      at.get(where)[column] = value;
    }),
  );
  const heads = lines.map(({title: [panel, name]}) => (panel && panel !== name ? `${panel}, ${name}` : name));
  return tableOf(
    caption,
    [AXES[x], ...heads],
    [...at].sort((a, b) => a[0] - b[0]).map(([where, values]) => [where, ...values]),
  );
};
