// What training said of itself: figures, speed, how examples were drawn.

// Figures over training of all runs, a panel for each.
const trainView = keys => () => {
  const rows = new Map(facts.runs.flatMap(run => run.train.rows).map(row => [row.key, row]));
  const panels = [...rows.values()]
    .filter(row => keys(row.key))
    .map(row => ({
      title: row.label,
      unit: row.unit,
      log: row.key === 'gnorm',
      format: row.key === 'padding' ? percent : number,
      lines: visibleRuns().flatMap(({run, number}) => {
        const own = run.train.rows.find(one => one.key === row.key);
        return own ? [{...lineOfRun(number, pointsOf(run.train.moments, state.x, own.values)), width: 1.2}] : [];
      }),
    }))
    .filter(panel => panel.lines.length);
  return {x: state.x, zoom: chosen(`zoom.${state.x}`, null), panels};
};

const SPEED = ['wps', 'ups', 'wpb', 'bsz', 'padding', 'skipped', 'gb_free', 'expert_comm_ms'];
const isSpeed = key => SPEED.includes(key);

const training = () => {
  const view = trainView(key => !isSpeed(key));
  if (!view().panels.length) return;
  const chart = lineChart({id: 'training-chart', label: 'Training', view, table: () => linesTable('Training', view)});
  section(
    'training',
    'Training',
    el('p', {class: 'soft'}, 'What training said of itself; peaks are kept where moments are left out.'),
    chart.figure,
  );
};

const speed = () => {
  const exchanged = part =>
    visibleRuns()
      .filter(({run}) => run.exchange)
      .map(({run, number}) =>
        lineOfRun(
          number,
          run.exchange.updates.map((update, at) => [update, run.exchange[part][at]]),
        ),
      );
  const view = () => {
    const trained = trainView(isSpeed)();
    const of = [
      ['seconds', 'exchange', 'seconds per update'],
      ['megabytes', 'sent to other processes', 'MB per update'],
    ];
    const panels = state.x !== 'update' ? [] : of.map(([part, title, unit]) => ({title, unit, lines: exchanged(part)}));
    return {...trained, panels: [...trained.panels, ...panels.filter(panel => panel.lines.length)]};
  };
  const hasExchange = facts.runs.some(run => run.exchange);
  if (!trainView(isSpeed)().panels.length && !hasExchange) return;
  const chart = lineChart({id: 'speed-chart', label: 'Speed', view, table: () => linesTable('Speed', view)});
  section('speed', hasExchange ? 'Speed and exchange' : 'Speed', chart.figure, hasExchange ? exchangeTable() : null);
};

const exchangeTable = () =>
  lazyTable('exchange', 'Exchange by layer', () =>
    tableOf(
      'What each expert layer sent to other processes, in the mean of an update',
      ['layer', 'run', 'milliseconds', 'MB'],
      visibleRuns()
        .filter(({run}) => run.exchange)
        .flatMap(({run, number}) =>
          Object.entries(run.exchange.layers).map(([layer, of]) => [
            layer,
            {show: runMark(number), by: run.name},
            (mean(of.seconds) ?? NaN) * 1000,
            mean(of.megabytes),
          ]),
        ),
    ),
  ).holder;

// Nothing moves in a single epoch: its shares are read from a table.
const samplingOfOneEpoch = (runs, names) => {
  const cells = (name, values, shown) => [
    name,
    ...runs.map(run => ({show: shown(values(run)?.[0]), by: values(run)?.[0]})),
  ];
  const rows = names.map(name => cells(name, run => run.sampling.probabilities[name], percent));
  const isHeated = runs.some(run => run.sampling.temperature[0] != null);
  const foot = isHeated ? [cells('temperature', run => run.sampling.temperature, number)] : [];
  section(
    'sampling',
    'Sampling',
    el('p', {class: 'soft'}, 'How often each language pair or task is drawn, in the only epoch so far.'),
    tableOf('Sampling', ['of', ...runs.map(run => run.name)], rows, foot),
  );
};

const sampling = () => {
  const withSome = facts.runs.filter(run => run.sampling.epochs.length);
  if (!withSome.length) return;
  const names = [...new Set(withSome.flatMap(run => Object.keys(run.sampling.probabilities)))];
  if (withSome.every(run => run.sampling.epochs.length === 1)) {
    samplingOfOneEpoch(withSome, names);
    return;
  }
  const few =
    names.length <= FEW
      ? names
      : [...names.slice(0, 3), ...names.slice(names.length >> 1).slice(0, 2), ...names.slice(-3)];
  const view = () => {
    const keys = names.filter(name => chosen('sampling.rows', few).includes(name));
    const runs = visibleRuns().filter(({run}) => run.sampling.epochs.length);
    const isWithin = ({run}) => new Set(run.sampling.epochs).size < run.sampling.epochs.length;
    const x =
      runs.some(isWithin) && runs.every(({run}) => !run.sampling.updates.includes(null)) ? 'update' : 'epoch';
    const over = values => run => run.sampling[`${x}s`].map((moment, at) => [moment, values(run)?.[at] ?? null]);
    const draws = several()
      ? keys.map(name => ({
          title: name,
          format: percent,
          lines: runs.map(({run, number}) => lineOfRun(number, over(one => one.sampling.probabilities[name])(run))),
        }))
      : [
          {
            title: 'share of what is drawn',
            log: keys.length > 1,
            format: percent,
            lines: keys.map((name, at) => ({
              name,
              points: over(one => one.sampling.probabilities[name])(runs[0]?.run ?? facts.runs[0]),
              color: lineColor(at, keys.length),
              end: name,
            })),
          },
        ];
    const heated = runs.filter(({run}) => run.sampling.temperature.some(value => value != null));
    const temperature = {
      title: 'temperature',
      lines: heated.map(({run, number}) => {
        const line = lineOfRun(number, over(one => one.sampling.temperature)(run));
        return several() ? line : {...line, name: 'temperature', color: colour('ink')};
      }),
    };
    return {
      x,
      panels: [...draws.filter(panel => panel.lines.length), ...(heated.length ? [temperature] : [])],
    };
  };
  const chart = lineChart({id: 'sampling-chart', label: 'Sampling', view, table: () => linesTable('Sampling', view)});
  section(
    'sampling',
    'Sampling',
    el('p', {class: 'soft'}, 'How often each language pair or task is drawn.'),
    names.length > FEW
      ? chooser({
          id: 'sampling',
          label: 'Lines',
          rows: names.map(name => ({key: name, label: name})),
          picked: chosen('sampling.rows', few),
          onpick: keys => {
            choose('sampling.rows', keys);
            chart.renew();
          },
        })
      : null,
    chart.figure,
  );
};

// What uncertainty sampling trained on.
const selection = () => {
  const withSome = facts.runs.filter(run => run.selection?.updates.length);
  if (!withSome.length) return;
  const view = () => {
    const {run} = visibleRuns().find(one => one.run.selection) ?? {run: withSome[0]};
    const of = values =>
      Object.entries(values).map(([name, list], at, all) => ({
        name,
        end: name,
        color: lineColor(at, all.length),
        points: list.map((value, moment) => [run.selection.updates[moment], value]),
      }));
    return {
      x: 'update',
      panels: [
        {title: 'share of what is trained on', format: percent, lines: of(run.selection.shares)},
        {title: 'uncertainty of candidates', lines: of(run.selection.entropies)},
        {title: 'share of the data trained on so far', format: percent, lines: of({all: run.selection.share_of_data})},
      ],
    };
  };
  const chart = lineChart({
    id: 'selection-chart',
    label: 'Selection',
    view,
    table: () => linesTable('Selection', view),
  });
  section('selection', 'Selection by uncertainty', chart.figure);
};
