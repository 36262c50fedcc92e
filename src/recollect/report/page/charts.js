// Curves of accuracy while tasks arrive, and accuracy against images kept. Colour and marker belong to the method.
const SHAPES = {
  o: (x, y, r) => `<circle cx="${x}" cy="${y}" r="${r}"/>`,
  s: (x, y, r) => `<path d="M${x - r},${y - r}h${2 * r}v${2 * r}h${-2 * r}z"/>`,
  "^": (x, y, r) => `<path d="M${x},${y - 1.2 * r}l${1.2 * r},${2.2 * r}h${-2.4 * r}z"/>`,
  v: (x, y, r) => `<path d="M${x},${y + 1.2 * r}l${1.2 * r},${-2.2 * r}h${-2.4 * r}z"/>`,
  D: (x, y, r) => `<path d="M${x},${y - 1.3 * r}l${1.3 * r},${1.3 * r}l${-1.3 * r},${1.3 * r}l${-1.3 * r},${-1.3 * r}z"/>`,
  X: (x, y, r) => `<path d="M${x - r},${y - r}l${2 * r},${2 * r}m0,${-2 * r}l${-2 * r},${2 * r}" stroke-width="2.6"/>`,
};

function marker(variant, x, y, radius, title) {
  const paint = `fill="${escape(variant.colour)}" stroke="${escape(variant.colour)}"`;
  return `<g ${paint}>${SHAPES[variant.marker](x, y, radius)}<title>${escape(title)}</title></g>`;
}

function dot(variant) {
  return `<svg class="swatch" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">${marker(variant, 8, 8, 4.5, "")}</svg>`;
}

function swatch(variant) {
  const line = `<path d="M0,8H28" stroke="${escape(variant.colour)}" stroke-width="2" stroke-dasharray="${variant.dashes}"/>`;
  return `<svg class="swatch" viewBox="0 0 28 16" width="28" height="16" aria-hidden="true">${line}${marker(variant, 14, 8, 4.5, "")}</svg>`;
}

function svg(width, height, title, body) {
  return `<svg viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img" aria-label="${escape(title)}">${body}</svg>`;
}

function frame(box, height, x, y, xTitle) {
  let body = `<text x="4" y="14" class="faint">percent</text>`;
  y.ticks.forEach((t) => {
    body += `<path class="axis" d="M${box.left},${y.to(t)}H${box.right}"/>`;
    body += `<text x="${box.left - 6}" y="${y.to(t) + 4}" text-anchor="end" class="faint">${t}</text>`;
  });
  x.ticks.forEach(([t, text]) => { body += `<text x="${x.to(t)}" y="${box.bottom + 18}" text-anchor="middle" class="faint">${escape(text)}</text>`; });
  return body + `<text x="${(box.left + box.right) / 2}" y="${height - 5}" text-anchor="middle" class="faint">${escape(xTitle)}</text>`;
}

function boxOf(element) {
  const width = Math.max(element.clientWidth, 280), height = clamp(Math.round(width * 0.55), 280, 460);
  return { width, height, box: { left: 34, right: width - 8, top: 24, bottom: height - 46 } };
}

function percentAxis(points, box) {
  const ends = points.flatMap((p) => [clamp(p.mean - (p.half ?? 0), 0, 100), clamp(p.mean + (p.half ?? 0), 0, 100)]);
  const high = Math.max(10, ...ends), low = Math.min(high - 5, ...ends);
  const tick = high - low > 50 ? 20 : high - low > 20 ? 10 : 5;
  const most = Math.ceil(high / tick) * tick, least = Math.max(Math.floor(low / tick) * tick, 0);
  const to = (value) => box.bottom - (box.bottom - box.top) * clamp((value - least) / (most - least), 0, 1);
  return { to, ticks: range(Math.floor((most - least) / tick) + 1).map((i) => least + tick * i) };
}

function curveOf(variant) {
  const points = range(experiment().tasks).map((i) => ({ task: i + 1, values: averagesAfter(variant, i) }));
  return points.filter(({ values }) => values.length).map(({ task, values }) => ({ task, mean: mean(values), half: halfWidth(values) }));
}

function band(points, x, y, colour) {
  const known = points.filter((p) => p.half !== null);
  if (known.length < 2) return "";
  const upper = known.map((p) => `${x.to(p.task)},${y.to(p.mean + p.half)}`);
  const lower = known.map((p) => `${x.to(p.task)},${y.to(p.mean - p.half)}`).reverse();
  return `<polygon class="band" points="${[...upper, ...lower].join(" ")}" fill="${escape(colour)}"/>`;
}

function drawCurves() {
  const { width, height, box } = boxOf(at("curves")), size = experiment().tasks;
  const lines = chosenVariants().map((variant) => ({ variant, points: curveOf(variant) })).filter((line) => line.points.length);
  const y = percentAxis(lines.flatMap((line) => line.points), box);
  const inner = { left: box.left + 12, right: box.right - 12 };
  const every = Math.ceil(size / Math.floor((box.right - box.left) / 26));
  const x = {
    to: (task) => inner.left + (inner.right - inner.left) * (task - 1) / Math.max(size - 1, 1),
    ticks: range(size).map((i) => [i + 1, i % every ? "" : String(i + 1)]),
  };
  let body = frame(box, height, x, y, "tasks learned");
  body += `<path d="M${x.to(state.step)},${box.top}V${box.bottom}" class="now"/>`;
  lines.forEach(({ variant, points }) => { body += band(points, x, y, variant.colour); });
  lines.forEach(({ variant, points }) => {
    const isBound = points.length === 1 && size > 1;
    const path = isBound ? `${inner.left},${y.to(points[0].mean)} ${inner.right},${y.to(points[0].mean)}`
      : points.map((p) => `${x.to(p.task)},${y.to(p.mean)}`).join(" ");
    body += `<polyline points="${path}" fill="none" stroke="${escape(variant.colour)}" stroke-width="${variant.ours ? 3 : 1.8}" stroke-dasharray="${isBound ? "1 5" : variant.dashes}"/>`;
    points.forEach((p) => {
      const interval = p.half === null ? "" : ` ± ${number(p.half)}`;
      body += marker(variant, x.to(p.task), y.to(p.mean), 3.6, `${variant.name}, after task ${p.task}: ${number(p.mean)}${interval} %`);
    });
  });
  at("curves").innerHTML = svg(width, height, "Average accuracy while tasks arrive", body);
}

// One column per number of images kept; within it the variants are side by side, so that no point covers another.
function drawTradeoff() {
  const { width, height, box } = boxOf(at("tradeoff")), last = experiment().tasks - 1;
  const points = chosenVariants().map((variant) => ({ variant, values: averagesAfter(variant, last) })).filter((p) => p.values.length)
    .map((p) => ({ ...p, mean: mean(p.values), half: halfWidth(p.values) || 0 })).sort((a, b) => b.mean - a.mean);
  const groups = [...new Set(points.map((p) => p.variant.kept))].sort((a, b) => (a === "all") - (b === "all") || a - b);
  const slots = groups.map((kept) => points.filter((p) => p.variant.kept === kept).length + 1);
  const total = slots.reduce((a, b) => a + b, 0) || 1, slot = (box.right - box.left) / total;
  const start = groups.map((_, i) => box.left + slot * slots.slice(0, i).reduce((a, b) => a + b, 0));
  const y = percentAxis(points, box);
  const x = { to: (i) => start[i] + slot * slots[i] / 2, ticks: groups.map((kept, i) => [i, kept]) };
  let body = frame(box, height, x, y, "images kept");
  start.slice(1).forEach((edge) => { body += `<path class="axis" d="M${edge},${box.top}V${box.bottom}"/>`; });
  groups.forEach((kept, i) => points.filter((p) => p.variant.kept === kept).forEach((p, j) => {
    const place = start[i] + slot * (j + 1);
    body += `<path d="M${place},${y.to(p.mean - p.half)}V${y.to(p.mean + p.half)}" stroke="${escape(p.variant.colour)}" stroke-width="1.5"/>`;
    body += marker(p.variant, place, y.to(p.mean), 5, `${p.variant.name}: ${number(p.mean)}${p.half ? ` ± ${number(p.half)}` : ""} %`);
  }));
  at("tradeoff").innerHTML = svg(width, height, "Accuracy against images kept", body);
}

function drawLegend() {
  const entries = chosenVariants().map((variant) => {
    const values = averagesAfter(variant, state.step - 1);
    return { variant, value: values.length ? mean(values) : null, half: halfWidth(values) };
  }).sort((a, b) => (b.value ?? -1) - (a.value ?? -1));
  at("legend").innerHTML = entries.map(({ variant, value, half }) => {
    const accuracy = value === null ? "not measured" : `${number(value)}${half === null ? "" : ` ± ${number(half)}`} %`;
    return `<li>${swatch(variant)} ${escape(variant.name)} <span class="dim">${accuracy}</span></li>`;
  }).join("") || '<li class="dim">Choose a method above.</li>';
}
