/* Pictures on canvases: a line over time, and the map of blocks. Colours come from the page's style, so both themes and
 * a change between them need nothing here but the next drawing. */

const SPAN_MIN = 30;

function context(canvas, width, height) {
  const scale = devicePixelRatio || 1;
  const w = Math.max(1, Math.round(width * scale)), h = Math.max(1, Math.round(height * scale));
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const g = canvas.getContext("2d");
  g.setTransform(scale, 0, 0, scale, 0, 0);
  g.clearRect(0, 0, width, height);
  return g;
}

/* points: [time in s, value]; the right edge is now. The left edge is where they begin, but at least SPAN_MIN seconds
 * ago. The height goes from 0 to at least `top`. */
export function line(canvas, points, top) {
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (!width) return;
  const g = context(canvas, width, height);
  const style = getComputedStyle(canvas);
  const now = points.length ? points.at(-1)[0] : 0;
  const span = Math.max(SPAN_MIN, points.length ? now - points[0][0] : 0);
  const max = points.reduce((m, p) => Math.max(m, p[1]), top) * 1.08;
  const x = (t) => width - ((now - t) / span) * width;
  const y = (v) => height - 1.5 - (v / max) * (height - 4);
  g.strokeStyle = style.borderColor;
  g.lineWidth = 1;
  g.beginPath();
  g.moveTo(0, height - 0.5);
  g.lineTo(width, height - 0.5);
  g.stroke();
  if (points.length < 2) return;
  const path = new Path2D();
  points.forEach(([t, v], i) => (i ? path.lineTo(x(t), y(v)) : path.moveTo(x(t), y(v))));
  g.strokeStyle = style.color;
  g.lineWidth = 1.6;
  g.lineJoin = "round";
  g.stroke(path);
  path.lineTo(width, height);
  path.lineTo(x(points[0][0]), height);
  g.globalAlpha = 0.13;
  g.fillStyle = style.color;
  g.fill(path);
  g.globalAlpha = 1;
}

const CELL_MAX = 14, CELL_MIN = 4, HEIGHT_MAX = 300;

/* states: one byte per block. Cells are as large as fit; with more blocks than cells, a cell shows the busiest state
 * of its blocks. */
export function blocks(canvas, states, colours) {
  const width = canvas.parentElement.firstElementChild.clientWidth; // as wide as the heading, whatever the padding
  if (width < CELL_MIN || !states.length) return;
  let cell = CELL_MAX;
  const rows = () => Math.ceil(states.length / Math.floor(width / cell));
  while (cell > CELL_MIN && rows() * cell > HEIGHT_MAX) cell--;
  const columns = Math.floor(width / cell);
  const fold = Math.max(1, Math.ceil(states.length / (columns * Math.floor(HEIGHT_MAX / cell))));
  const n = Math.ceil(states.length / fold);
  const height = Math.ceil(n / columns) * cell;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const g = context(canvas, width, height);
  const gap = cell > 6 ? 2 : 1;
  for (let i = 0; i < n; i++) {
    let state = 0;
    for (let k = i * fold; k < Math.min((i + 1) * fold, states.length); k++) state = Math.max(state, states[k]);
    g.fillStyle = colours[state] || colours[0];
    g.fillRect((i % columns) * cell, Math.floor(i / columns) * cell, cell - gap, cell - gap);
  }
  return fold;
}
