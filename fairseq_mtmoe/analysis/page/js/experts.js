// Who uses which expert: shares by update, layer and task (a language or a benchmark's task), three of which a map shows
// at a time against the experts.

const NOTHING = 65535,
  WHOLE = 10000;

// shares(moment, layer, task) are those of the experts, or null where nothing was counted.
const unpacked = run => {
  const {experts} = run;
  const bytes = Uint8Array.from(atob(experts.packed), sign => sign.charCodeAt(0));
  const values = new DataView(bytes.buffer),
    sizes = experts.layers.map(layer => experts.num_experts[layer]);
  const starts = sizes.map((_, at) => experts.tasks.length * sizes.slice(0, at).reduce((a, b) => a + b, 0));
  const ofMoment = experts.tasks.length * sizes.reduce((a, b) => a + b, 0);
  return (moment, layer, task) => {
    const first = moment * ofMoment + starts[layer] + task * sizes[layer];
    if (values.getUint16(2 * first, true) === NOTHING) return null;
    return Array.from({length: sizes[layer]}, (_, expert) => values.getUint16(2 * (first + expert), true) / WHOLE);
  };
};

const entropyOf = shares => -shares.reduce((sum, share) => sum + (share > 0 ? share * Math.log(share) : 0), 0);
const meanOf = rows =>
  rows.length ? rows[0].map((_, at) => rows.reduce((sum, row) => sum + row[at], 0) / rows.length) : [];

const ROWS = {tasks: 'languages', layers: 'layers', updates: 'updates'};

class ExpertMap {
  constructor(run, number) {
    Object.assign(this, {run, number, shares: unpacked(run), experts: run.experts});
    this.unit = {language: 'language', pair: 'pair', task: 'task'}[run.setup.unit] ?? 'language';
    this.highest = new Map();
  }

  // The moments, layers and tasks that are chosen now: indices that this run has.
  get at() {
    const {updates, layers, tasks} = this.experts;
    const within = (name, length, otherwise) => Math.min(chosen(`experts.${name}`, otherwise), length - 1);
    return {
      moment: within('update', updates.length, updates.length - 1),
      layer: within('layer', layers.length, 0),
      task: within('task', tasks.length, 0),
    };
  }

  get kind() {
    return chosen('experts.rows', 'tasks');
  }

  get all() {
    const {moment, layer, task} = this.at,
      {updates, layers, tasks} = this.experts;
    return {
      tasks: tasks.map((name, at) => ({name, shares: this.shares(moment, layer, at)})),
      layers: layers.map((name, at) => ({name, shares: this.shares(moment, at, task)})),
      updates: updates.map((update, at) => ({name: number(update, 12), shares: this.shares(at, layer, task)})),
    }[this.kind];
  }

  // The highest share that the sliders can bring, so that a colour means the same wherever they are.
  most() {
    const {layer, task} = this.at,
      {updates, layers, tasks} = this.experts;
    const key = [this.kind, this.kind === 'layers' ? task : layer].join();
    if (!this.highest.has(key)) {
      const ofLayers = this.kind === 'layers' ? layers.map((_, at) => at) : [layer];
      const ofTasks = this.kind === 'layers' ? [task] : tasks.map((_, at) => at);
      let most = 0;
      updates.forEach((_, moment) =>
        ofLayers.forEach(one =>
          ofTasks.forEach(of => {
            for (const share of this.shares(moment, one, of) ?? []) most = Math.max(most, share);
          }),
        ),
      );
      this.highest.set(key, most || 1);
    }
    return this.highest.get(key);
  }

  view() {
    const rows = this.all,
      columns = Math.max(...rows.map(row => row.shares?.length ?? 0), 1);
    const filled = rows.map(row => row.shares ?? Array(columns).fill(null));
    const known = rows.map(row => row.shares).filter(shares => shares?.length === columns);
    const order = this.order(filled, columns),
      load = meanOf(known),
      kind = this.kind;
    const rowName = {tasks: this.unit, layers: 'layer', updates: 'update'}[kind];
    const noteName = 'in use',
      even = 1 / columns;
    return {
      rows: rows.map(row => row.name),
      columns: order.map(at => String(at)),
      most: this.most(),
      even,
      rowName,
      columnName: 'expert',
      values: filled.map(shares => order.map(at => shares[at] ?? null)),
      load: order.map(at => load[at] ?? 0),
      loadName: `mean of the ${kind === 'tasks' ? `${this.unit}s` : ROWS[kind]}`,
      noteName,
      rowNote: rows.map(row => (row.shares ? fixed(Math.exp(entropyOf(row.shares))) : '')),
      cell: (row, column) => {
        const share = filled[row][order[column]];
        const times = share == null ? '' : `, ${fixed(share * rows[row].shares.length)} times an even share`;
        return `${rowName} ${rows[row].name}, expert ${order[column]}: ${share == null ? 'nothing counted' : percent(share)}${times}`;
      },
    };
  }

  // Experts by their number, or by the row that uses them most, which shows who shares experts with whom.
  order(rows, columns) {
    const order = Array.from({length: columns}, (_, at) => at);
    if (!chosen('experts.sorted', false)) return order;
    const best = order.map(at =>
      rows.reduce((top, row, number) => ((row[at] ?? 0) > (rows[top][at] ?? 0) ? number : top), 0),
    );
    return order.sort((a, b) => best[a] - best[b] || (rows[best[b]][b] ?? 0) - (rows[best[a]][a] ?? 0));
  }
}

const experts = () => {
  const maps = facts.runs.map((run, number) => (run.experts.updates.length ? new ExpertMap(run, number) : null));
  const known = maps.filter(map => map);
  if (!known.length) return;
  const current = () => maps[chosen('experts.run', known[0].number)] ?? known[0];
  const controls = el('div', {class: 'sliders'}),
    scale = el('div'),
    note = el('p', {class: 'soft small'});
  let updates = null;
  const step = by => () => updates?.step(by);
  const chart = heatChart({
    id: 'experts-chart',
    label: 'Shares of the experts',
    view: () => current().view(),
    keys: {PageUp: step(1), PageDown: step(-1)},
  });
  const entropy = lineChart({
    id: 'entropy-chart',
    label: 'Entropy of routing',
    view: () => entropyView(current()),
    table: () => linesTable('Entropy of routing', () => entropyView(current())),
  });
  const renew = () => {
    chart.renew();
    entropy.renew();
    const view = current().view();
    scale.replaceChildren(heatLegend(view.most, view.even));
  };
  const showControls = () => {
    const map = current(),
      {moment, layer, task} = map.at,
      {updates: at, layers, tasks} = map.experts,
      kind = map.kind;
    const of = (name, label, names, value) =>
      slider({
        id: `experts-${name}`,
        label,
        length: names.length,
        at: value,
        name: index => names[index],
        onmove: index => {
          choose(`experts.${name}`, index);
          renew();
        },
      });
    updates =
      kind === 'updates'
        ? null
        : of(
            'update',
            'update',
            at.map(update => number(update, 12)),
            moment,
          );
    const others = [
      kind === 'layers' ? null : of('layer', 'layer', layers, layer),
      kind === 'tasks' ? null : of('task', map.unit, tasks, task),
    ];
    controls.replaceChildren(...[updates, ...others].filter(one => one).map(one => one.holder));
    note.textContent = [
      map.experts.thinned ? 'Some validations are left out.' : '',
      'In use: e to the power of the entropy, the number of experts that would be used if evenly.',
    ].join(' ');
  };
  const rowsOfMaps = Object.entries({...ROWS, tasks: `${known[0].unit}s`});
  section(
    'experts',
    'Experts',
    el(
      'p',
      {class: 'soft'},
      'Which share of the validation tokens each expert gets. Experts of different layers have nothing in common.',
    ),
    el(
      'div',
      {class: 'controls'},
      known.length > 1
        ? choice(
            'run',
            known.map(map => [map.number, map.run.name]),
            current().number,
            value => {
              choose('experts.run', value);
              showControls();
              renew();
            },
          )
        : null,
      choice('rows are', rowsOfMaps, current().kind, value => {
        choose('experts.rows', value);
        showControls();
        renew();
      }),
      tick('experts by their main user', chosen('experts.sorted', false), on => {
        choose('experts.sorted', on);
        renew();
      }),
    ),
    controls,
    chart.figure,
    scale,
    note,
    el('h3', {}, 'How evenly tokens are spread'),
    entropy.figure,
  );
  showControls();
  changes.push(renew);
  renew();
};

// How evenly tokens are spread over the experts of the chosen layer, over updates: 1 is evenly.
const entropyView = map => {
  const {entropy} = map.run,
    layer = map.at.layer,
    tasks = entropy.tasks;
  const shown =
    tasks.length <= FEW
      ? tasks.map((_, at) => at)
      : [0, 1, 2, tasks.length >> 1, tasks.length - 3, tasks.length - 2, tasks.length - 1];
  const lines = shown.map((task, at) => ({
    name: tasks[task],
    end: tasks[task],
    color: lineColor(at, shown.length),
    points: entropy.updates.map((update, moment) => [update, entropy.values[layer][task][moment]]),
  }));
  const of = entropy.updates.map((update, moment) => [
    update,
    mean(tasks.map((_, task) => entropy.values[layer][task][moment])),
  ]);
  const all = {
    name: `mean of ${tasks.length}`,
    end: `mean of ${tasks.length}`,
    color: colour('ink'),
    width: 2.8,
    points: of,
  };
  return {
    x: 'update',
    ends: true,
    panels: [{unit: `entropy of ${entropy.layers[layer]}, 1 is even`, lines: [...lines, all]}],
  };
};

// How far gates are from their start, a line for each layer; of the first run that is shown and has some.
const GATE_FIGURES = {
  blend: {title: 'blend'},
  moved: {title: 'distance from the start, in lengths of the start'},
  changed: {title: 'tokens with another expert than at the start', format: percent},
};

const gates = () => {
  const withSome = facts.runs.filter(run => run.gates);
  if (!withSome.length) return;
  const view = () => {
    const {run} = visibleRuns().find(one => one.run.gates) ?? {run: withSome[0]};
    const {updates, figures} = run.gates;
    const linesOf = rows =>
      Object.entries(rows).map(([name, values], at, all) => ({
        name,
        end: name,
        color: lineColor(at, all.length),
        points: values.map((value, moment) => [updates[moment], value]),
      }));
    return {
      x: 'update',
      panels: Object.entries(figures).map(([name, rows]) => ({...GATE_FIGURES[name], lines: linesOf(rows)})),
    };
  };
  const chart = lineChart({id: 'gates-chart', label: 'Gates', view, table: () => linesTable('Gates', view)});
  section(
    'gates',
    'Gates',
    el('p', {class: 'soft'}, 'How far the gates of each layer are from their start, in validation.'),
    chart.figure,
  );
};

// What a run borrows from which source, by layer.
const sources = () => {
  facts.runs.forEach((run, number) => {
    if (!run.sources) return;
    const {sources: names, layers, target, update} = run.sources,
      rows = Object.keys(layers);
    const values = rows.map(layer => layers[layer]),
      known = values.flat().filter(value => value != null);
    const view = () => ({
      rows,
      columns: names,
      values,
      most: Math.max(...known, 1e-9),
      even: 1 / names.length,
      rowName: 'layer',
      columnName: 'source',
      rowNote: rows.map(() => ''),
      noteName: '',
      load: meanOf(values).map(value => value ?? 0),
      loadName: 'mean of the layers',
      cell: (row, column) => `${rows[row]}, source ${names[column]}: ${percent(values[row][column]) || 'no value'}`,
    });
    const chart = heatChart({id: `sources-${number}`, label: `What ${target} borrows`, view});
    section(
      `sources-of-${number}`,
      'Sources',
      el(
        'p',
        {class: 'soft'},
        'What ',
        named(target),
        ' borrows from which source in ',
        runMark(number),
        `, at update ${update}.`,
      ),
      chart.figure,
    );
  });
};
