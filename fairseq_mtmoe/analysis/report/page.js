'use strict';
(() => {
// The page's script: it turns a reader's choices into the points of charts, whose shapes are in `facts.specs`.
const facts = JSON.parse(document.getElementById('facts').textContent);
const KEY = `mtmoe report ${location.pathname}`;
const INK = {light: ['#0072B2', '#D55E00', '#00835f', '#b0568c', '#b87a00', '#2f9fd8', '#222a33', '#7a5cc0'],
  dark: ['#56A9E8', '#FF8A4C', '#2bbd8f', '#e59ac6', '#f0b63a', '#9bd7ff', '#e6e9ed', '#b7a2f2']};
const DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4], [4, 1]];
const AXES = {update: 'updates', tokens: 'target tokens', minutes: 'minutes of training', epoch: 'epochs'};
const NOTHING = 65535, WHOLE = 10000, FEW = 12, MOST_LINES = 8, PAGE = 20, QUIET = 3000;

// ---- elements: all are made here; text is never interpreted as HTML
const el = (tag, properties = {}, ...children) => {
  const one = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith('on')) one.addEventListener(name.slice(2), value);
    else if (value === true) one.setAttribute(name, '');
    else if (value !== false && value != null) one.setAttribute(name, value);
  }
  one.append(...children.flat().filter(child => child != null));
  return one;
};
const unique = values => [...new Set(values)];
const known = value => value != null && Number.isFinite(value);
const number = value => !known(value) ? '' : Math.abs(value) >= 1e4 ? Math.round(value).toLocaleString('en')
  : value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
const percent = share => known(share) ? `${(100 * share).toFixed(1)} %` : '';
const runMark = run => el('b', {class: `run r${run % 8}`}, el('bdi', {}, facts.runs[run].name));

// A table whose column heads sort it. A cell is text, a number, or {show, by}: shown content and sort key.
const tableOf = (caption, heads, rows, foot = []) => {
  const worth = cell => cell?.by === undefined ? cell : cell.by;
  const isText = heads.map((_, at) => rows.some(row => typeof worth(row[at]) === 'string'));
  const rowOf = cells => el('tr', {}, cells.map((cell, at) => {
    const value = cell?.show === undefined ? cell : cell.show;
    return el(at ? 'td' : 'th', {scope: at ? null : 'row', class: isText[at] ? 'text' : null},
      typeof value === 'number' ? number(value) : value ?? '');
  }));
  const body = el('tbody', {}, rows.map(rowOf));
  const order = (at, head) => {
    const up = head.getAttribute('aria-sort') !== 'ascending';
    head.parentElement.querySelectorAll('th').forEach(one => one.removeAttribute('aria-sort'));
    head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
    const rank = row => worth(row[at]) ?? (up ? Infinity : -Infinity);
    const compare = (a, b) => typeof a === 'string' && typeof b === 'string' ? a.localeCompare(b) : a > b ? 1 : a < b
      ? -1 : 0;
    body.replaceChildren(...[...rows].sort((a, b) => (up ? 1 : -1) * compare(rank(a), rank(b))).map(rowOf));
  };
  const headOf = (name, at) => {
    const head = el('th', {scope: 'col', class: isText[at] ? 'text' : null});
    head.append(el('button', {type: 'button', class: 'sort', onclick: () => order(at, head)}, el('bdi', {}, name)));
    return head;
  };
  return el('div', {class: 'scroll', role: 'region', tabindex: 0, 'aria-label': caption},
    el('table', {}, el('caption', {}, caption), el('thead', {}, el('tr', {}, heads.map(headOf))), body,
      foot.length ? el('tfoot', {}, foot.map(rowOf)) : null));
};

// ---- the reader's choices: they outlive a reload of the page in this window
const remembered = () => { try { return JSON.parse(sessionStorage.getItem(KEY)) ?? {}; } catch { return {}; } };
const state = {theme: 'auto', x: 'update', from: 0, hidden: [], open: {}, choices: {}, ...remembered()};
const keep = () => {
  try { sessionStorage.setItem(KEY, JSON.stringify({...state, at: scrollY, focus: document.activeElement?.id})); }
  catch { /* no storage */ }
};
const chosen = (name, otherwise) => state.choices[name] ?? otherwise;
const choose = (name, value) => { state.choices[name] = value; keep(); };
const isShown = run => !state.hidden.includes(run);
const shownRuns = () => facts.runs.map((_, run) => run).filter(isShown);

// ---- controls
const choice = (id, label, options, value, onpick) => {
  const select = el('select', {id, onchange: event => onpick(event.target.value)},
    options.map(([name, text]) => el('option', {value: name}, text)));
  select.value = value;
  return el('label', {class: 'choice'}, label, select);
};
const tick = (id, label, on, onpick) => el('label', {class: 'tick'},
  el('input', {id, type: 'checkbox', checked: on, onchange: event => onpick(event.target.checked)}), label);
const slider = (id, label, names, at, onmove) => {
  const output = el('output', {}, names[at]);
  const input = el('input', {id, type: 'range', min: 0, max: names.length - 1, oninput: event => {
    output.textContent = names[event.target.value];
    onmove(Number(event.target.value));
  }});
  input.value = at;
  return el('label', {class: 'slider'}, el('span', {}, label), input, output);
};
const search = (id, label, oninput) =>
  el('input', {type: 'search', id, placeholder: 'search', 'aria-label': label, oninput});
// Checkboxes for names; a search hides names that do not contain its text.
const pills = (id, names, labelOf, picked, onpick) => {
  const boxes = names.map((name, at) => el('label', {class: 'pill'}, el('input', {type: 'checkbox', id: `${id}-${at}`,
    checked: picked.includes(name), onchange: () => onpick(names.filter((_, box) => boxes[box].firstChild.checked))}),
  el('bdi', {}, labelOf(name))));
  const text = search(`${id}-search`, 'Search names', () => boxes.forEach((box, at) => {
    box.hidden = !labelOf(names[at]).toLowerCase().includes(text.value.trim().toLowerCase());
  }));
  const found = () => names.filter((_, at) => !boxes[at].hidden);
  const button = (label, of) => el('button', {type: 'button', onclick: () => {
    boxes.forEach((box, at) => { box.firstChild.checked = of().includes(names[at]); });
    onpick(of());
  }}, label);
  return el('div', {class: 'chooser'},
    el('div', {class: 'row'}, names.length > FEW ? [text, button('only the found ones', found)] : null,
    button('all', () => names), button('none', () => [])), el('div', {class: 'pills'}, boxes));
};

// ---- charts: drawn when they come into view, and redrawn when a choice, the theme or the width changes
const charts = [];
const isDark = () => state.theme === 'dark' || (state.theme === 'auto'
  && matchMedia('(prefers-color-scheme: dark)').matches);
const ink = at => INK[isDark() && !printing ? 'dark' : 'light'][at % 8];
let printing = false;
const shade = (at, of) => {
  const share = of > 1 ? at / (of - 1) : 0.5;
  return `hsl(${Math.round(270 - 200 * share)} 60% ${Math.round((isDark() ? 45 : 28) + 28 * share)}%)`;
};
const config = () => {
  const [text, soft, grid] = isDark() && !printing ? ['#e6e9ed', '#a0a9b4', '#2c343d']
    : ['#1b1f24', '#57606a', '#e6eaef'];
  return {background: null, font: 'system-ui, "Noto Sans", sans-serif', view: {stroke: null},
    axis: {labelColor: soft, titleColor: soft, gridColor: grid, domainColor: soft, tickColor: soft,
      titleFontWeight: 'normal', labelLimit: 140},
    header: {labelColor: text, labelFontSize: 12},
      legend: {labelColor: text, titleColor: soft, symbolLimit: 0, labelLimit: 260},
    text: {color: soft}, line: {strokeWidth: 1.9}, rule: {color: soft}};
};
class Chart {
  // spec(width): for Vega-Lite, or null if there is nothing to draw. table(): the table under the chart.
  constructor(id, label, spec, table) {
    Object.assign(this, {id, spec, table, stale: true, inView: false, turn: 0});
    this.plot = el('div', {class: 'plot', id: `${id}-plot`, role: 'img',
      'aria-label': `${label}; its numbers are in the table below.`});
    this.behind = el('details', {class: 'data', id: `${id}-table`, ontoggle: () => this.fill()},
      el('summary', {}, 'As a table'));
    this.figure = el('figure', {class: 'chart'}, this.plot, this.behind);
    charts.push(this);
    watcher.observe(this.plot);
  }
  async draw() {
    const width = printing ? 680 : this.plot.clientWidth, turn = this.turn += 1;
    if (!width) return;
    this.stale = false;
    const spec = this.spec(width);
    if (!spec) { this.view?.finalize();
      this.plot.replaceChildren(el('p', {class: 'soft'}, 'Nothing is selected, or there are no values.')); return; }
    const holder = el('div');
    const made = await vegaEmbed(holder, spec,
      {ast: true, actions: false, defaultStyle: false, renderer: printing ? 'svg' : 'canvas',
      tooltip: {disableDefaultStyle: true}, config: config(), logLevel: 1});
    if (turn !== this.turn) { made.finalize(); return; }
    this.view?.finalize();
    this.view = made;
    this.plot.replaceChildren(holder);
    performance.mark('drawn');
  }
  renew() {
    this.stale = true;
    this.fill();
    if (this.inView || printing) this.draw();
  }
  fill() {
    this.behind.querySelector('.scroll')?.remove();
    if (this.behind.open) this.behind.append(this.table());
  }
}
const watcher = new IntersectionObserver(entries => entries.forEach(entry => {
  const chart = charts.find(one => one.plot === entry.target);
  chart.inView = entry.isIntersecting;
  if (chart.inView && chart.stale) chart.draw();
}), {rootMargin: '150px'});
const renewals = [];
const renewAll = () => { charts.forEach(chart => chart.renew()); renewals.forEach(renew => renew()); };

const section = (id, title, ...children) => document.getElementById('charts').append(
  el('section', {id, 'aria-labelledby': `${id}-title`, 'data-part': title}, el('h2', {id: `${id}-title`}, title),
    ...children));

// ---- line charts: rows of some groups, over updates, tokens, minutes or epochs
const LOG = {ppl: true, probability: true};
const titleOf = metric => facts.titles[metric] ?? metric;
const linesSpec = (view, width) => {
  if (!view.points.length) return null;
  const spec = structuredClone(facts.specs.lines), panels = unique(view.points.map(point => point.panel));
  const columns = Math.max(1, Math.min(panels.length, Math.floor(width / 340), 3));
  const names = unique(view.points.map(point => point.line));
  const each = width / columns - (columns > 1 ? 72 : 64), moments = Math.max(...panels.map(panel =>
    unique(view.points.filter(point => point.panel === panel).map(point => point.x)).length));
  const legend = names.length > 1
    ? {title: null, orient: 'bottom', symbolType: 'stroke', columns: Math.max(1, Math.floor(width / 170))} : null;
  const scaled = of => ({field: 'line', type: 'nominal', legend,
    scale: {domain: names, range: names.map(name => of(name, names))}});
  const color = scaled(view.color), dash = scaled(view.dash);
  spec.datasets = {points: view.points};
  Object.assign(spec.facet, {sort: panels});
  spec.columns = columns;
  Object.assign(spec.spec, {width: Math.max(160, each), height: panels.length > 1 ? 170 : 290});
  spec.spec.layer.forEach(layer => {
    Object.assign(layer.encoding, layer.mark.type === 'text' ? {color} : {color, strokeDash: dash});
    layer.encoding.x.title = AXES[view.x];
    layer.encoding.x.axis.format = view.points.some(point => point.x >= 1e4) ? '~s' : ',~f';
    const y = layer.encoding.y;
    if (y) {
      y.scale = {nice: false, padding: 5, zero: view.log ? undefined : false, type: view.log ? 'log' : 'linear'};
      y.title = panels.length > 1 ? null : view.unit;
      y.axis = view.percent ? {format: '.2~%', tickCount: 6} : {format: '.4~g', tickCount: 6};
    }
    if (layer.encoding.tooltip?.length) layer.encoding.tooltip[1].title = AXES[view.x];
    if (layer.mark.type === 'line' && moments <= FEW) layer.mark.point = {filled: true, size: 30};
  });
  return spec;
};
const linesTable = (caption, view) => {
  const at = new Map(), points = view.points.filter(point => !point.sparse);
  const nameOf = point => unique([point.panel, point.line].filter(name => name)).join(': ');
  points.forEach(point => at.set(point.x, (at.get(point.x) ?? new Map()).set(nameOf(point), point.y)));
  const names = unique(points.map(nameOf));
  return tableOf(caption, [AXES[view.x], ...names],
    [...at.entries()].sort((a, b) => a[0] - b[0]).map(([x, of]) => [x, ...names.map(name => of.get(name) ?? null)]));
};

const lineSection = ({id, title, groups, by, only, x: ownAxis}) => {
  const rows = facts.rows.filter(row => groups.includes(row.g) && (!only || only.includes(row.m)));
  if (!rows.length) return;
  const keyOf = {metric: row => row.m, layer: row => row.l, task: row => `${row.g}:${row.t}`}[by];
  const labels = new Map(rows.map(row =>
    [keyOf(row), by === 'metric' ? titleOf(row.m) : by === 'layer' ? row.l : row.t || titleOf(row.m)]));
  const metrics = by === 'metric' ? [] : unique(rows.map(row => row.m)),
    layers = by === 'task' ? unique(rows.map(row => row.l)).filter(one => one) : [];
  const metric = () => chosen(`${id}.metric`, metrics.includes('probability') ? 'probability' : metrics[0]),
    layer = () => chosen(`${id}.layer`, layers[0]);
  const asked = () => rows.filter(row => (!metrics.length || row.m === metric())
    && (!layers.length || row.l === layer()));
  const keys = () => unique(asked().map(keyOf));
  const first = all => {
    const means = all.filter(key => !/^(pair|task):/.test(key));
    return (means.length > 1 ? means : all).slice(0, MOST_LINES);
  };
  const picked = () => chosen(`${id}.keys.${metric() ?? ''}`, first(keys()));
  const axis = () => {
    if (!ownAxis) return groups.includes('train') || groups.includes('pair') ? state.x : 'update';
    const epochs = facts.moments[rows[0].a].epoch;
    return unique(epochs).length < epochs.length && facts.moments[rows[0].a].update.every(known) ? 'update' : 'epoch';
  };
  const view = () => {
    const x = axis(), several = shownRuns().length > 1, apart = chosen(`${id}.apart`, several || by === 'metric');
    const shown = asked().filter(row => isShown(row.r) && picked().includes(keyOf(row))),
      log = chosen(`${id}.log`, Boolean(LOG[metric()]));
    const owner = new Map(), points = shown.flatMap(row => {
      const label = labels.get(keyOf(row)), run = facts.runs[row.r].name, moments = facts.moments[row.a][x];
      const line = apart ? (several || by === 'metric' ? run : label) : several ? `${run}: ${label}` : label,
        panel = apart ? label : '';
      owner.set(line, [row.r, picked().indexOf(keyOf(row))]);
      const start = state.from / 100 * Math.max(...moments.filter(known));
      const made = row.v.map((y, at) => ({x: moments[at], y: log && y <= 0 ? null : y, line, panel})).filter(point =>
        known(point.x) && point.x >= start);
      const sparse = groups.includes('pair') && x === 'update' ? facts.runs[row.r].sparsified : [];
      return [...made, ...sparse.map(([update, experts]) =>
        ({x: update, y: null, line, panel, sparse: experts ? `sparse: ${experts} experts` : 'sparse'}))];
    });
    const byRun = line => apart || several && picked().length === 1;
    return {x, log, points, unit: titleOf(metric() ?? ''), percent: facts.percent.includes(metric()),
      color: (line, names) => byRun(line) ? ink(owner.get(line)[0]) : names.length <= 8 ? ink(names.indexOf(line))
        : shade(names.indexOf(line), names.length),
      dash: (line, names) => DASHES[(byRun(line) ? Math.floor(owner.get(line)[0] / 8)
        : names.indexOf(line)) % DASHES.length]};
  };
  const chart = new Chart(`${id}-chart`, title, width => linesSpec(view(), width), () => linesTable(title, view()));
  const controls = el('div', {class: 'controls'}), names = el('div'), drawn = el('p', {class: 'soft small'});
  const tell = () => {
    const all = keys(), count = all.filter(key => picked().includes(key)).length;
    drawn.textContent = count < all.length ? `${count} of ${all.length} lines are drawn; tick the others here.` : '';
  };
  const renew = (name, value) => { choose(`${id}.${name}`, value); show(); chart.renew(); };
  const show = () => {
    const axes = Object.keys(AXES).filter(one => one !== 'epoch'
      && rows.some(row => facts.moments[row.a][one].some(known)));
    controls.replaceChildren(...[
      metrics.length > 1 ? choice(`${id}-metric`, 'of', metrics.map(one => [one, titleOf(one)]), metric(),
        value => renew('metric', value)) : null,
      layers.length > 1 ? choice(`${id}-layer`, 'in', layers.map(one => [one, one]), layer(),
        value => renew('layer', value)) : null,
      axis() === state.x && axes.length > 1
        ? choice(`${id}-x`, 'over', axes.map(one => [one, AXES[one]]), state.x,
          value => { state.x = value; keep(); renewAll(); }) : null,
      by === 'metric' ? null : tick(`${id}-log`, 'logarithmic', chosen(`${id}.log`, Boolean(LOG[metric()])),
        on => renew('log', on)),
      by === 'metric' ? null : tick(`${id}-apart`, 'a panel for each', chosen(`${id}.apart`, shownRuns().length > 1),
        on => renew('apart', on)),
      groups.includes('pair') || groups.includes('train')
        ? slider(`${id}-from`, 'without the first', Array.from({length: 91}, (_, at) => `${at} %`), state.from,
        at => { state.from = at; keep(); charts.forEach(one => one.renew()); }) : null,
    ].filter(one => one));
    names.replaceChildren(...(keys().length > 1
      ? [pills(id, keys(), key => labels.get(key), picked(),
        value => { choose(`${id}.keys.${metric() ?? ''}`, value); tell(); chart.renew(); })] : []));
    tell();
  };
  show();
  section(id, title, controls, drawn, names, chart.figure);
};

// ---- heat maps: experts' shares of tokens, and weights of the sources
const heatSpec = (cells, width, column, unit) => {
  if (!cells.length) return null;
  const spec = structuredClone(facts.specs.heat), columns = unique(cells.map(cell => cell.column)),
    rows = unique(cells.map(cell => cell.row));
  spec.datasets = {points: cells};
  spec.columns = 1;
  Object.assign(spec.spec, {width: Math.max(140, Math.min(width - 190, 64 * columns.length)),
    height: Math.max(13, Math.min(24, 420 / rows.length)) * rows.length});
  spec.spec.layer.forEach(layer => {
    Object.assign(layer.encoding.x,
      {sort: columns, title: column,
        axis: {labelAngle: columns.length > 8 && column === 'expert' ? 0 : -40, labelOverlap: true}});
    Object.assign(layer.encoding.y, {sort: rows, title: null, axis: {labelOverlap: rows.length > 60}});
    layer.encoding.color.scale = {scheme: isDark() && !printing ? 'darkblue' : 'blues',
      domain: [0, Math.max(...cells.map(cell => cell.value ?? 0)) || 1]};
    layer.encoding.color.legend = {format: '.0%', gradientLength: 110, title: unit};
    layer.encoding.tooltip.forEach(one => { if (one.field === 'column') one.title = column; });
  });
  return spec;
};
const heatTable = (caption, cells) => {
  const columns = unique(cells.map(cell => cell.column));
  return tableOf(caption, ['', ...columns.map(String)], unique(cells.map(cell => cell.row)).map(row => {
    const of = new Map(cells.filter(cell => cell.row === row).map(cell => [cell.column, cell.value]));
    return [String(row), ...columns.map(column => ({show: percent(of.get(column)), by: of.get(column) ?? null}))];
  }));
};
// shares(moment, layer, task): the experts' shares, or null if no token was counted.
const unpacked = ({packed, layers, tasks, sizes}) => {
  const bytes = new DataView(Uint8Array.from(atob(packed), sign => sign.charCodeAt(0)).buffer);
  const starts = [...layers, ''].map((_, at) => tasks.length * sizes.slice(0, at).reduce((a, b) => a + b, 0));
  return (moment, layer, task) => {
    const first = moment * starts.at(-1) + starts[layer] + task * sizes[layer];
    const of = Array.from({length: sizes[layer]}, (_, expert) => bytes.getUint16(2 * (first + expert), true));
    return of[0] === NOTHING ? null : of.map(share => share / WHOLE);
  };
};
const runChoice = (id, runs, run, onpick) => runs.length > 1
  ? choice(`${id}-run`, 'run', runs.map(one => [one, facts.runs[one].name]), run, onpick) : null;
const expertSection = ({id, title}) => {
  const with_ = facts.runs.map((_, run) => run).filter(run => facts.experts[run]);
  if (!with_.length) return;
  const shares = new Map(with_.map(run => [run, unpacked(facts.experts[run])]));
  const run = () => Number(chosen('experts.run', with_[0])), of = () => facts.experts[run()],
    kind = () => chosen('experts.rows', 'tasks');
  const at = (name, length, otherwise) => Math.min(chosen(`experts.${name}`, otherwise), length - 1);
  const position = () => ({moment: at('moment', of().updates.length, of().updates.length - 1),
    layer: at('layer', of().layers.length, 0), task: at('task', of().tasks.length, 0)});
  const cells = () => {
    const {moment, layer, task} = position(), {updates, layers, tasks} = of(), get = shares.get(run());
    const rows = {tasks: tasks.map((name, one) => [name, get(moment, layer, one)]),
      layers: layers.map((name, one) => [name, get(moment, one, task)]),
      updates: updates.map((name, one) => [number(name), get(one, layer, task)])}[kind()];
    const most = Math.max(1, ...rows.map(([, row]) => row?.length ?? 0)),
      order = Array.from({length: most}, (_, expert) => expert);
    if (chosen('experts.sorted', false)) {
      const user = order.map(expert =>
        rows.reduce((best, [, row], one) => (row?.[expert] ?? 0) > (rows[best][1]?.[expert] ?? 0) ? one : best, 0));
      order.sort((a, b) => user[a] - user[b]);
    }
    return rows.flatMap(([row, values]) =>
      order.map(expert => ({row, column: expert, value: values?.[expert] ?? null, panel: ''})));
  };
  const chart = new Chart('experts-chart', 'Shares of the experts',
    width => heatSpec(cells(), width, 'expert', 'share'), () => heatTable('Shares of the experts', cells()));
  const controls = el('div', {class: 'controls'}), sliders = el('div', {class: 'sliders'});
  const set = (name, again = true) => value => { choose(`experts.${name}`, value); if (again) show(); chart.renew(); };
  const show = () => {
    const {moment, layer, task} = position(), {updates, layers, tasks} = of(), unit = facts.runs[run()].unit;
    controls.replaceChildren(...[
      runChoice('experts', with_, run(), set('run')),
      choice('experts-rows', 'rows are', [['tasks', `${unit}s`], ['layers', 'layers'], ['updates', 'updates']],
        kind(), set('rows')),
      tick('experts-sorted', 'experts by their main user', chosen('experts.sorted', false), set('sorted')),
    ].filter(one => one));
    sliders.replaceChildren(...[
      kind() === 'updates' ? null : slider('experts-moment', 'update', updates.map(number), moment,
        set('moment', false)),
      kind() === 'layers' ? null : slider('experts-layer', 'layer', layers, layer, set('layer', false)),
      kind() === 'tasks' ? null : slider('experts-task', unit, tasks, task, set('task', false)),
    ].filter(one => one));
  };
  show();
  section(id, title, el('p', {class: 'soft'},
    "Each expert's share of the validation tokens. Experts of different layers are unrelated."),
    controls, sliders, chart.figure);
};
const sourceSection = ({id, title}) => {
  const with_ = unique(facts.rows.filter(row => row.g === 'sources').map(row => row.r));
  if (!with_.length) return;
  const run = () => Number(chosen('sources.run', with_[0]));
  const cells = () => facts.rows.filter(row => row.g === 'sources' && row.r === run())
    .map(row => ({row: row.l || 'all layers', column: row.t, value: row.v[0], panel: ''}));
  const chart = new Chart('sources-chart', 'Weights of the sources',
    width => heatSpec(cells(), width, 'source', 'weight'), () => heatTable('Weights of the sources', cells()));
  section(id, title, el('p', {class: 'soft'}, 'Weights that the gates give the sources, at the last validation.'),
    runChoice('sources', with_, run(), value => { choose('sources.run', value); chart.renew(); }), chart.figure);
};

// ---- scores and translations
const scoreSection = () => {
  const {sets, values, differences, level} = facts.scores,
    metrics = Object.keys(values).filter(one => one !== 'majority');
  if (!metrics.length) return;
  const metric = () => chosen('scores.metric', metrics[0]),
    text = search('scores-search', 'Search scores', () => show());
  const against = () => differences.filter(one => one.metric === metric()
    && [one.first, one.second].every(name => isShown(facts.runs.findIndex(run => run.name === name))));
  const fixed = (value, digits = 2) => known(value) ? value.toFixed(digits) : '';
  // A small difference gets more digits, so that it is not shown as 0.
  const digits = value => value && Math.abs(value) < 0.005 ? Math.ceil(-Math.log10(2 * Math.abs(value))) : 2;
  const signed = value => `${value > 0 ? '+' : ''}${fixed(value, digits(value))}`;
  const runs = () => shownRuns().filter(run => Object.values(values[metric()]).some(of => of[run]));
  const majority = set => Object.values(values.majority[set.key] ?? {})[0]?.[0];
  const cellsOf = set => [set.label, set.tier,
    ...(values.majority ? [{show: fixed(majority(set)), by: majority(set)}] : []),
    ...runs().map(run => {
      const [value, error] = values[metric()][set.key]?.[run] ?? [];
      return {show: known(error) ? `${fixed(value)} ± ${fixed(error)}` : fixed(value), by: value ?? null};
    }),
    ...against().map(one => {
      const [value, , , p] = one.of[set.key] ?? [];
      return {show: known(value) ? el('span', {class: p < level ? 'stands' : 'soft'},
        `${signed(value)}${p < level ? ' *' : ''}`) : '', by: value ?? null};
    })];
  const told = ` * significant, p < ${level} by approximate randomisation`;
  const table = wanted => tableOf(against().length ? `${metric()};${told}` : metric(),
    ['test set', 'tier', ...(values.majority ? ['majority class'] : []), ...runs().map(run => facts.runs[run].name),
      ...against().map(one => `${one.second} − ${one.first}`)],
    sets.filter(set => !set.mean && wanted(set)).map(cellsOf), sets.filter(set => set.mean).map(cellsOf));
  const holder = el('div'), points = () => against().flatMap(one => sets.filter(set => one.of[set.key]).map(set => {
    const [y, low, high, p] = one.of[set.key];
    return {row: set.label, y, low, high, stands: p < level, line: one.second};
  }));
  const spec = width => {
    const found = points(), made = structuredClone(facts.specs.dots), names = unique(found.map(point => point.line));
    if (!found.length) return null;
    const scale = {domain: names, range: names.map(name => ink(facts.runs.findIndex(run => run.name === name)))},
      rows = unique(found.map(point => point.row));
    Object.assign(made, {datasets: {points: found}, width: width - 150,
      height: rows.length * Math.max(15, 10 * names.length)});
    made.layer.forEach(layer => {
      if (layer.encoding.y) layer.encoding.y.sort = rows;
      if (layer.encoding.color) Object.assign(layer.encoding.color,
        {scale, legend: names.length > 1 ? {orient: 'bottom', title: null} : null});
      if (layer.encoding.fill) Object.assign(layer.encoding.fill, {value: 'transparent',
        condition: {...layer.encoding.fill.condition, scale}});
      if (layer.encoding.x?.title) layer.encoding.x.title = `difference in ${metric()} from ${against()[0].first}`;
    });
    return made;
  };
  const chart = differences.length
    ? new Chart('scores-chart', 'Differences with their intervals', spec, () => table(() => true)) : null;
  const show = () => { holder.replaceChildren(table(set =>
    `${set.label} ${set.tier}`.toLowerCase().includes(text.value.trim().toLowerCase()))); };
  renewals.push(show);
  section('scores', 'Scores', el('div', {class: 'controls'},
    metrics.length > 1 ? choice('scores-metric', 'of', metrics.map(one => [one, one]), metric(),
      value => { choose('scores.metric', value); show(); chart?.renew(); }) : null,
    sets.length > FEW ? text : null), holder,
      chart ? [el('h3', {}, 'Differences, with 95% intervals; filled: significant'), chart.figure] : null);
  show();
  document.getElementById('scores').append(...document.querySelectorAll('.about'));
};
const textSection = () => {
  if (!facts.texts.length) return;
  const list = el('ol', {class: 'texts'}), count = el('output', {class: 'soft small'}),
    pairs = unique(facts.texts.map(one => one.pair));
  let room = PAGE;
  const all = one => [one.pair, one.source ?? '', ...one.references,
    ...one.by.map(([, text]) => text)].join('\n').toLowerCase();
  const line = (head, content, kind) =>
    el('div', {class: `line ${kind}`}, el('dt', {}, head), el('dd', {dir: 'auto'}, content));
  const marked = (text, references) => {  // words that no reference has
    const there = new Set(references.flatMap(one => one.split(/\s+/)));
    return text.split(/(\s+)/).map(word => !word.trim() || there.has(word) ? word : el('span', {class: 'other'}, word));
  };
  const item = one => el('li', {},
    el('div', {class: 'soft small'}, el('bdi', {}, one.pair), `, sentence ${one.line}`), el('dl', {},
    one.source == null ? null : line('source', one.source, 'source'),
      one.references.map(text => line('reference', text, 'reference')),
    one.by.filter(([run]) => isShown(run)).map(([run, text]) =>
      line(runMark(run), marked(text, one.references), 'hypothesis'))));
  const show = () => {
    const pair = chosen('texts.pair', ''), text = find.value.trim().toLowerCase();
    const found = facts.texts.filter(one => (!pair || one.pair === pair) && all(one).includes(text));
    list.replaceChildren(...found.slice(0, room).map(item));
    count.textContent = `${Math.min(room, found.length)} of ${found.length}`;
    more.hidden = room >= found.length;
  };
  const find = search('texts-search', 'Search translations',
    () => { choose('texts.search', find.value); room = PAGE; show(); });
  find.value = chosen('texts.search', '');
  const more = el('button', {type: 'button', id: 'more', onclick: () => { room += PAGE; show(); }}, 'more');
  renewals.push(show);
  section('texts', 'Translations',
    el('div', {class: 'row'}, choice('texts-pair', 'pair', [['', 'all'], ...pairs.map(pair => [pair, pair])],
      chosen('texts.pair', ''),
    value => { choose('texts.pair', value); room = PAGE; show(); }), find, count), list, more);
  show();
};

// ---- the bar at the top, and the page's events
const showTheme = () => {
  if (state.theme === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = state.theme;
};
const follow = () => {  // reloads the page of a running training, but not while the reader is active
  if (facts.watched == null) return null;
  let last = 0;
  ['keydown', 'pointerdown', 'pointermove',
    'wheel'].forEach(kind => addEventListener(kind, () => { last = Date.now(); }, {passive: true}));
  const due = Date.now() + Math.max(1, facts.watched) * 1000;
  setInterval(() => {
    if (state.paused || Date.now() < due || Date.now() - last < QUIET || document.hidden) return;
    keep();
    location.reload();
  }, 500);
  return tick('follow', 'follow the run', !state.paused, on => { state.paused = !on; keep(); });
};
const bar = () => {
  const theme = choice('theme', 'colours', [['auto', 'as the system'], ['light', 'light'], ['dark', 'dark']],
    state.theme,
    value => { state.theme = value; keep(); showTheme(); renewAll(); });
  document.getElementById('switches').append(...[follow(), theme].filter(one => one));
  document.getElementById('parts').append(...[...document.querySelectorAll('[data-part]')].map(one =>
    el('li', {}, el('a', {href: `#${one.id}`}, one.dataset.part))));
  if (facts.runs.length > 1) document.getElementById('legend').append(...facts.runs.map((_, run) =>
    el('label', {class: 'pill'},
    el('input', {type: 'checkbox', id: `run-${run}`, checked: isShown(run), onchange: event => {
      state.hidden = event.target.checked ? state.hidden.filter(one => one !== run) : [...state.hidden, run];
      keep();
      renewAll();
    }}), runMark(run))));
};
const paper = on => { printing = on; charts.forEach(chart => (on ? chart.draw() : chart.renew())); };

state.hidden = state.hidden.filter(run => run < facts.runs.length);
if (!facts.rows.some(row => facts.moments[row.a][state.x]?.some(known))) state.x = 'update';
showTheme();
facts.sections.forEach(one => ({experts: expertSection, sources: sourceSection}[one.heat] ?? lineSection)(one));
scoreSection();
textSection();
bar();
document.querySelectorAll('details[id]').forEach(one => { one.open = state.open[one.id] ?? one.open; });
document.addEventListener('toggle',
  event => { if (event.target.id) { state.open[event.target.id] = event.target.open; keep(); } }, true);
let waiting = 0;
addEventListener('resize', () => { cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(() => { if (!printing) charts.forEach(chart => chart.renew()); }); });
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', renewAll);
addEventListener('beforeprint', () => paper(true));
addEventListener('afterprint', () => paper(false));
if (state.at) scrollTo({top: state.at, behavior: 'instant'});
if (state.focus) document.getElementById(state.focus)?.focus({preventScroll: true});
addEventListener('pagehide', keep);
performance.mark('drawn');
})();
