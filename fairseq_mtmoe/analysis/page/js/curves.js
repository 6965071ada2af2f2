// Validation over updates, tokens or minutes.

const visibleRuns = () =>
  facts.runs.map((run, number) => ({run, number})).filter(({number}) => !state.hidden.includes(number));
const several = () => visibleRuns().length > 1;

const pointsOf = (moments, x, values) =>
  values.map((value, at) => [moments[x][at], value]).filter(([where]) => where != null);

const hasMoments = (parts, x) =>
  facts.runs.some(run => parts.some(part => run[part].moments[x].some(at => at != null)));
const axesOf = parts =>
  Object.keys(AXES)
    .filter(x => x !== 'epoch' && hasMoments(parts, x))
    .map(x => [x, AXES[x]]);

// When dense models became sparse, at the place of that update on this axis.
const sparsifiedMarks = (number, moments, x) =>
  facts.runs[number].sparsified
    .map(one => {
      const at = moments.update.findIndex(update => update >= one.update);
      const where = x === 'update' ? one.update : moments[x][Math.max(at, 0)];
      return {
        x: where,
        text: one.num_experts ? `sparse: ${one.num_experts} experts` : 'sparse',
        color: runColor(number),
      };
    })
    .filter(mark => mark.x != null);

const lineOfRun = (number, points, name) => ({
  name: name ?? facts.runs[number].name,
  run: number,
  points,
  color: runColor(number),
  dash: runDash(number),
  end: name ?? facts.runs[number].name,
});

const GROUPS = {all: 0, tier: 1, group: 2, pair: 3, task: 4};

const rowsOf = metric => {
  const found = new Map();
  facts.runs.forEach(run =>
    run.curves.rows
      .filter(row => row.metric === metric)
      .forEach(row => {
        if (!found.has(row.key))
          found.set(row.key, {key: row.key, label: row.label, group: row.group, better: row.better});
      }),
  );
  return [...found.values()].sort((a, b) => GROUPS[a.group] - GROUPS[b.group]);
};

const curveOf = (run, key, metric) => run.curves.rows.find(row => row.key === key && row.metric === metric);

// Metrics of all rows first, each once.
const metricsOf = () => [...new Set(facts.runs.flatMap(run => run.curves.rows.map(row => row.metric)))];

const firstRows = rows => {
  const groups = rows.filter(row => row.group !== 'pair' && row.group !== 'task').map(row => row.key);
  return (groups.length > 1 ? groups : rows.map(row => row.key)).slice(0, 6);
};

// How a row went: where it began, its best and its last value.
const courseOf = (row, moments) => {
  const known = row.values.map((value, at) => [value, moments.update[at]]).filter(([value]) => value != null);
  if (!known.length) return null;
  const sign = row.better === 'higher' ? -1 : 1;
  const best = known.reduce((a, b) => (sign * b[0] < sign * a[0] ? b : a));
  return {first: known[0][0], best: best[0], at: best[1], last: known.at(-1)[0]};
};

const curvesView = () => {
  const metric = chosen('curves.metric', metricsOf()[0]),
    rows = rowsOf(metric);
  const keys = chosen(`curves.rows.${metric}`, firstRows(rows));
  const picked = rows.filter(row => keys.includes(row.key));
  const x = state.x,
    log = chosen('curves.log', metric === 'ppl'),
    apart = chosen('curves.apart', facts.runs.length > 1);
  const all = visibleRuns().flatMap(({run, number}) => sparsifiedMarks(number, run.curves.moments, x));
  const marks = [...new Map(all.map(mark => [`${mark.x} ${mark.text}`, mark])).values()];
  const lines = row =>
    visibleRuns().flatMap(({run, number}) => {
      const curve = curveOf(run, row.key, metric);
      return curve ? [lineOfRun(number, pointsOf(run.curves.moments, x, curve.values))] : [];
    });
  const zoom = chosen(`zoom.${x}`, null),
    common = {x, zoom, zoomable: true};
  if (apart && picked.length > 1) {
    return {...common, panels: picked.map(row => ({title: row.label, log, lines: lines(row), marks}))};
  }
  const together = picked.flatMap((row, at) =>
    lines(row).map(line =>
      several()
        ? {
            ...line,
            name: picked.length > 1 ? `${line.name}: ${row.label}` : line.name,
            end: picked.length > 1 ? `${row.label} ${line.name}` : line.name,
            dash: picked.length > 1 ? DASHES[at % DASHES.length] : line.dash,
          }
        : {
            ...line,
            name: row.label,
            end: row.label,
            color: lineColor(at, picked.length),
            dash: at < RUN_COLORS ? 'solid' : DASHES[at % DASHES.length],
            width: row.group === 'all' ? 2.8 : 1.8,
          },
    ),
  );
  return {...common, ends: true, panels: [{unit: metric, log, lines: together, marks}]};
};

const courseTable = () => {
  const metric = chosen('curves.metric', metricsOf()[0]);
  const rows = rowsOf(metric).flatMap(row =>
    visibleRuns().flatMap(({run, number}) => {
      const curve = curveOf(run, row.key, metric),
        course = curve && courseOf(curve, run.curves.moments);
      if (!course) return [];
      const lost = course.best ? Math.abs(course.last / course.best - 1) : 0;
      return [
        [
          row.label,
          ...(facts.runs.length > 1 ? [{show: runMark(number), by: run.name}] : []),
          course.first,
          course.best,
          course.at,
          course.last,
          {show: lost > 0.02 ? el('span', {class: 'warned'}, percent(lost)) : percent(lost), by: lost},
        ],
      ];
    }),
  );
  return tableOf(
    `Validation, ${metric}`,
    ['of', ...(facts.runs.length > 1 ? ['run'] : []), 'first', 'best', 'at update', 'last', 'last from best'],
    rows,
  );
};

const lazyTable = (id, title, make) => {
  const holder = el('details', {id, class: 'data', ontoggle: () => fill()}, el('summary', {}, title));
  const fill = () => {
    holder.querySelector('.scroll')?.remove();
    if (holder.open) holder.append(make());
  };
  return {holder, fill};
};

const changes = []; // what is drawn anew when runs are shown or hidden, or the axis changes

const curves = () => {
  if (!metricsOf().length) return;
  const courses = lazyTable('courses', 'First, best and last of everything', courseTable);
  const rowsAt = el('div');
  const chart = lineChart({
    id: 'curves-chart',
    label: 'Validation',
    view: curvesView,
    table: () => linesTable('Validation', curvesView),
    onzoom: zoom => {
      choose(`zoom.${state.x}`, zoom);
      redrawAll();
    },
  });
  const renew = () => {
    chart.renew();
    courses.fill();
  };
  const showRows = () => {
    const metric = chosen('curves.metric', metricsOf()[0]),
      rows = rowsOf(metric),
      name = `curves.rows.${metric}`;
    const of = group => rows.filter(row => row.group === group).map(row => row.key);
    const quick = [
      ['all and tiers', [...of('all'), ...of('tier'), ...of('group')]],
      ['pairs', of('pair')],
      ['tasks', of('task')],
      ['five highest', worst(rows, metric)],
    ].filter(([, keys]) => keys.length > 1);
    rowsAt.replaceChildren(
      chooser({
        id: 'curves',
        label: 'Lines',
        rows,
        picked: chosen(name, firstRows(rows)),
        quick,
        onpick: keys => {
          choose(name, keys);
          chart.renew();
        },
      }),
    );
  };
  const of = (label, name, otherwise) =>
    tick(label, chosen(name, otherwise), on => {
      choose(name, on);
      chart.renew();
    });
  showRows();
  section(
    'curves',
    'Validation',
    el(
      'div',
      {class: 'controls'},
      metricsOf().length > 1
        ? choice(
            'of',
            metricsOf().map(metric => [metric, metric]),
            chosen('curves.metric', metricsOf()[0]),
            metric => {
              choose('curves.metric', metric);
              showRows();
              renew();
            },
          )
        : null,
      choice('over', axesOf(['curves']), state.x, x => {
        remember('x', x);
        redrawAll();
      }),
      of('logarithmic', 'curves.log', metricsOf()[0] === 'ppl'),
      of('a panel for each', 'curves.apart', facts.runs.length > 1),
    ),
    rowsAt,
    chart.figure,
    facts.runs.some(run => run.curves.thinned)
      ? el('p', {class: 'soft small'}, 'There was no room for every validation; the best one of each line is shown.')
      : null,
    courses.holder,
  );
  changes.push(courses.fill);
};

// The five pairs or tasks that stand highest at the end, in the mean of the runs.
const worst = (rows, metric) =>
  rows
    .filter(row => row.group === 'pair' || row.group === 'task')
    .map(row => {
      const last = facts.runs
        .map(run => curveOf(run, row.key, metric)?.values.findLast(value => value != null))
        .filter(value => value != null);
      return [row.key, last.reduce((a, b) => a + b, 0) / Math.max(1, last.length)];
    })
    .sort((a, b) => b[1] - a[1])
    .slice(0, 5)
    .map(([key]) => key);
