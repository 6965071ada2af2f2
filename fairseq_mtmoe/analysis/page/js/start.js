// Builds the page: marks of the runs, the bar at the top, the sections.

const markRuns = () =>
  document.querySelectorAll('.run[data-run]').forEach(one => {
    one.style.setProperty('--run', `var(--c${one.dataset.run % RUN_COLORS})`);
  });

// A small curve of each run's first row, for its line of the table.
const sparks = () =>
  document.querySelectorAll('[data-spark]').forEach(cell => {
    const number = Number(cell.dataset.spark),
      row = facts.runs[number].curves.rows[0];
    const values = row?.values.filter(value => value != null) ?? [];
    if (values.length < 2) return;
    const make = (tag, attributes) => {
      const one = document.createElementNS('http://www.w3.org/2000/svg', tag);
      Object.entries(attributes).forEach(([name, value]) => one.setAttribute(name, value));
      return one;
    };
    const [low, high] = rangeOf(values.map(value => Math.log(Math.max(value, 1e-9))));
    const points = values.map(
      (value, at) =>
        `${(118 * at) / (values.length - 1) + 1},${1 + (22 * (high - Math.log(Math.max(value, 1e-9)))) / (high - low || 1)}`,
    );
    const picture = make('svg', {
      viewBox: '0 0 120 24',
      width: 120,
      height: 24,
      role: 'img',
      'aria-label': `${row.metric} from ${short(values[0])} to ${short(values.at(-1))}`,
    });
    picture.append(
      make('polyline', {points: points.join(' '), fill: 'none', 'stroke-width': 1.6, 'stroke-linejoin': 'round'}),
    );
    picture.style.setProperty('stroke', `var(--c${number % RUN_COLORS})`);
    cell.append(picture);
  });

const legend = () => {
  const holder = document.getElementById('legend');
  if (facts.runs.length < 2) {
    holder.remove();
    return;
  }
  holder.append(
    ...facts.runs.map((_, number) =>
      el(
        'label',
        {class: 'pill'},
        el('input', {
          type: 'checkbox',
          id: `run-${number}`,
          checked: !state.hidden.includes(number),
          onchange: event => {
            remember(
              'hidden',
              event.target.checked ? state.hidden.filter(one => one !== number) : [...state.hidden, number],
            );
            redrawAll();
            changes.forEach(renew => renew());
          },
        }),
        runMark(number),
      ),
    ),
  );
};

const switches = () => {
  const theme = el(
    'select',
    {
      id: 'theme',
      'aria-label': 'Colours',
      onchange: event => {
        remember('theme', event.target.value);
        showTheme();
        redrawAll();
        changes.forEach(renew => renew());
      },
    },
    [
      ['auto', 'as the system'],
      ['light', 'light'],
      ['dark', 'dark'],
    ].map(([value, text]) => el('option', {value}, text)),
  );
  theme.value = state.theme;
  document.getElementById('switches').append(...[watch(), theme].filter(one => one));
};

const parts = () =>
  document
    .getElementById('parts')
    .append(
      ...[...document.querySelectorAll('[data-part]')].map(one =>
        el('li', {}, el('a', {href: `#${one.id}`}, one.dataset.part)),
      ),
    );

showTheme();
state.hidden = state.hidden.filter(number => number < facts.runs.length);
if (!hasMoments(['curves', 'train'], state.x)) state.x = 'update';
[curves, training, sampling, selection, experts, gates, sources, speed, scores, texts].forEach(part => part());
markRuns();
sparks();
legend();
switches();
parts();
document.querySelectorAll('main details:not([id])').forEach((one, at) => {
  one.id = `details-${at}`;
});
rememberOpen();
charts.forEach(chart => chart.reserve());
followTheWorld();
goOn();
performance.mark('drawn'); // and again whenever charts come into view
