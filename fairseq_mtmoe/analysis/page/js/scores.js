// Scores of test sets, and what stands out of chance between two runs.

const LEVEL = 0.05;

const scored = () => visibleRuns().filter(({run}) => run.scores);

const scoreRows = () => {
  const found = new Map();
  scored().forEach(({run}) =>
    [...run.scores.rows, ...run.scores.averages].forEach(row => {
      if (!found.has(row.key)) found.set(row.key, row);
    }),
  );
  return [...found.values()];
};

const scoreOf = (run, key) => [...run.scores.rows, ...run.scores.averages].find(row => row.key === key);
const isMean = row => row.group !== 'pair' && row.group !== 'task';

// Scores and their differences have the same digits, so that a reader can subtract.
const DIGITS = 2;
const shownScore = value => fixed(value, DIGITS);
const withError = (value, error) =>
  error == null ? shownScore(value) : `${shownScore(value)} ± ${shownScore(error)}`;

// What would be shown as nothing, and is not, has as many digits more as it takes.
const inWords = ({difference}) => {
  const digits = Math.abs(difference) > 0 ? Math.max(DIGITS, Math.ceil(-Math.log10(2 * Math.abs(difference)))) : DIGITS;
  return `${difference > 0 ? '+' : ''}${fixed(difference, digits)}`;
};

const comparisonsOf = metric =>
  facts.comparisons.filter(
    one => one.metric === metric && [one.first, one.second].every(name => scored().some(({run}) => run.name === name)),
  );

const runNumber = name => facts.runs.findIndex(run => run.name === name);

const scoresTable = metric => {
  const runs = scored(),
    against = comparisonsOf(metric);
  const rows = scoreRows(),
    majority = rows.some(row => row.majority != null) ? ['majority class'] : [];
  const heads = [
    'of',
    'tier',
    ...majority,
    ...runs.map(({run}) => run.name),
    ...against.map(one => `${one.second} − ${one.first}`),
  ];
  const cells = row => [
    row.label,
    row.tier,
    ...majority.map(() => ({show: shownScore(row.majority), by: row.majority})),
    ...runs.map(({run}) => {
      const own = scoreOf(run, row.key),
        value = own?.values[metric];
      return {show: withError(value, own?.errors[metric]), by: value};
    }),
    ...against.map(one => {
      const found = one.rows.find(other => other.key === row.key);
      if (!found) return null;
      const out = found.p < LEVEL;
      return {
        show: el('span', {class: out ? 'stands' : 'soft'}, `${inWords(found)}${out ? ' *' : ''}`),
        by: found.difference,
      };
    }),
  ];
  const text = el('input', {type: 'search', id: 'scores-search', placeholder: 'search', 'aria-label': 'Search scores'});
  const holder = el('div');
  const show = () => {
    const found = rows.filter(
      row => isMean(row) || `${row.label} ${row.tier}`.toLowerCase().includes(text.value.trim().toLowerCase()),
    );
    holder.replaceChildren(
      tableOf(
        `${metric}${against.length ? `; * stands out of chance, p < ${LEVEL} by approximate randomisation` : ''}`,
        heads,
        found.filter(row => !isMean(row)).map(cells),
        found.filter(isMean).map(cells),
      ),
    );
  };
  text.addEventListener('input', show);
  show();
  return el('div', {}, rows.length > FEW ? el('div', {class: 'row'}, text) : null, holder);
};

// A dot with its interval for each row and pair of runs; it is filled where the difference stands out of chance.
const differencesOption = (against, metric, width) => {
  const rows = [...against[0].rows].reverse(),
    left = width < 520 ? 74 : 110;
  const dots = (one, at) => {
    const shift = (at - (against.length - 1) / 2) * 9,
      ink = runColor(runNumber(one.second));
    const of = key => one.rows.find(row => row.key === key);
    return {
      type: 'custom',
      name: one.second,
      data: rows.map((row, y) => {
        const found = of(row.key);
        return found
          ? [found.difference, y, found.difference - found.error, found.difference + found.error, found.p]
          : [null, y, null, null, 1];
      }),
      encode: {x: [2, 0, 3], y: 1},
      renderItem: (_, api) => {
        if (Number.isNaN(api.value(0))) return null;
        const [x, y] = api.coord([api.value(0), api.value(1)]),
          from = api.coord([api.value(2), 0])[0],
          to = api.coord([api.value(3), 0])[0];
        return {
          type: 'group',
          children: [
            {
              type: 'line',
              shape: {x1: from, x2: to, y1: y + shift, y2: y + shift},
              style: {stroke: ink, lineWidth: 1.5},
            },
            {
              type: 'circle',
              shape: {cx: x, cy: y + shift, r: 4},
              style: {fill: api.value(4) < LEVEL ? ink : colour('paper'), stroke: ink, lineWidth: 1.5},
            },
          ],
        };
      },
    };
  };
  return {
    grid: {left, right: 18, top: 8, bottom: 44},
    xAxis: {
      type: 'value',
      name: `difference in ${metric} from ${against[0].first}`,
      nameLocation: 'middle',
      nameGap: 26,
      nameTextStyle: {color: colour('soft'), fontSize: 11, width: width - left - 20, overflow: 'truncate'},
      axisLabel: {color: colour('soft')},
      splitLine: {lineStyle: {color: colour('grid')}},
      axisLine: {show: true, lineStyle: {color: colour('soft')}},
    },
    yAxis: {
      type: 'category',
      data: rows.map(row => row.label),
      axisTick: {show: false},
      axisLine: {show: false},
      axisLabel: {color: colour('ink'), fontSize: 11, interval: 0, width: left - 12, overflow: 'truncate'},
    },
    tooltip: {
      trigger: 'item',
      ...tooltipLook(),
      formatter: item => {
        const row = rows[item.dataIndex],
          one = against[item.seriesIndex];
        return tip(row.label, [
          [
            runColor(runNumber(one.second)),
            `${one.second} − ${one.first}`,
            `${fixed(item.value[0], 2)} ± ${fixed(item.value[3] - item.value[0], 2)}, p = ${number(item.value[4], 2)}`,
          ],
        ]);
      },
    },
    series: against.map(dots),
  };
};

const differencesChart = (metric, against) =>
  new Chart({
    id: 'scores-chart',
    label: 'Differences between runs',
    height: () => 60 + against()[0].rows.length * Math.max(18, 9 * against().length + 6),
    option: width => differencesOption(against(), metric(), width),
    table: () =>
      tableOf(
        'Differences',
        ['of', 'run', 'difference', 'half of the 95% interval', 'p'],
        against().flatMap(one =>
          one.rows.map(row => [row.label, `${one.second} − ${one.first}`, row.difference, row.error, row.p]),
        ),
      ),
  });

const scores = () => {
  const all = facts.runs.filter(run => run.scores);
  if (!all.length) return;
  const metrics = [...new Set(all.flatMap(run => run.scores.metrics))];
  const metric = () => chosen('scores.metric', metrics[0]);
  const table = el('div'),
    differ = el('div');
  const against = () => {
    const found = comparisonsOf(metric());
    return found.filter(one => one.first === found[0].first);
  };
  const chart = facts.comparisons.length ? differencesChart(metric, against) : null;
  const renew = () => {
    table.replaceChildren(scored().length ? scoresTable(metric()) : '');
    differ.hidden = !comparisonsOf(metric()).length;
    chart?.renew();
  };
  if (chart) {
    differ.append(
      el('h3', {}, 'Differences'),
      el(
        'p',
        {class: 'soft'},
        `Lines: 95% intervals, of drawing sentences. Filled: p < ${LEVEL}. Other seeds are another chance, which is not weighed here.`,
      ),
      chart.figure,
    );
  }
  const signatures = [...new Set(all.flatMap(run => run.scores.signatures))],
    ofAll = text => all.every(run => run.scores.remarks.includes(text)),
    remarks = [
      ...new Set(all.flatMap(run => run.scores.remarks.map(text => (ofAll(text) ? text : `${run.name}: ${text}`)))),
    ];
  section(
    'scores',
    'Scores',
    metrics.length > 1
      ? el(
          'div',
          {class: 'controls'},
          choice(
            'metric',
            metrics.map(one => [one, one]),
            metric(),
            value => {
              choose('scores.metric', value);
              renew();
            },
          ),
        )
      : null,
    table,
    differ,
    ...remarks.map(text => el('p', {class: 'soft small', dir: 'auto'}, text)),
    signatures.length
      ? el(
          'p',
          {class: 'soft small'},
          'Signatures: ',
          signatures.flatMap(text => [el('code', {}, text), ' ']),
        )
      : null,
  );
  changes.push(renew);
  renew();
};
