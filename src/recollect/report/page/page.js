"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const state = { experiment: 0, seed: 0, evaluation: "til", after: 1, shown: new Set(), playing: null };
const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const escape = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const number = (value, digits = 1) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
const colour = (slot) => `var(--c${slot % 8})`;
const dashes = (slot) => ["", "6 4", "2 3"][Math.floor(slot / 8) % 3];

function viridis(share) {
  const place = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1);
  const low = Math.min(Math.floor(place), STOPS.length - 2);
  const mix = STOPS[low].map((c, i) => Math.round(c + (place - low) * (STOPS[low + 1][i] - c)));
  return `rgb(${mix.join(",")})`;
}

function svg(width, height, title, body) {
  return `<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="${escape(title)}">${body}</svg>`;
}

const experiment = () => DATA.experiments[state.experiment];
const chosen = () => experiment().variants.filter((_, i) => state.shown.has(i)).map((v, slot) => ({ ...v, slot }));
const runOf = (variant) => variant.runs.find((run) => run.seed === state.seed) || variant.runs[0];
const matrixOf = (run) => run[state.evaluation];

function heatmap(title, rows, { most, digits, until, note, reverse = false }) {
  const cell = 26, left = 30, top = 34, size = rows.length;
  let body = `<text x="0" y="12">${escape(title)}</text><text x="0" y="26" class="faint">${escape(note)}</text>`;
  rows.forEach((row, i) => {
    body += `<text x="${left - 6}" y="${top + i * cell + 17}" text-anchor="end" class="faint">${i + 1}</text>`;
    body += `<text x="${left + i * cell + 13}" y="${top + size * cell + 14}" text-anchor="middle" class="faint">${i + 1}</text>`;
    row.forEach((value, j) => {
      if (value === null || value === undefined) return;
      const share = reverse ? 1 - value / most : value / most;
      const faded = i + 1 > until ? 0.18 : 1;
      const ink = share > 0.55 ? "#000" : "#fff";
      body += `<g opacity="${faded}"><rect x="${left + j * cell}" y="${top + i * cell}" width="${cell - 1}" height="${cell - 1}" fill="${viridis(share)}">`
        + `<title>after task ${i + 1}, on task ${j + 1}: ${number(value, digits)}</title></rect>`;
      if (size <= 10) body += `<text x="${left + j * cell + 12.5}" y="${top + i * cell + 17}" text-anchor="middle" style="fill:${ink};font-size:10px">${number(value, digits === 1 ? 0 : digits)}</text>`;
      body += "</g>";
    });
  });
  return svg(left + size * cell + 4, top + size * cell + 20, `${title}. ${note}`, body);
}

// What was measured on tasks learned by then; with fixed heads a row also has future tasks.
function learnedCells(matrix, row) {
  return matrix[row].slice(0, row + 1).filter((value) => value !== null);
}

function drawMatrices() {
  const found = chosen().map((variant) => {
    const run = runOf(variant), matrix = matrixOf(run);
    if (!matrix) return `<p class="dim">${escape(variant.name)} has no chain.</p>`;
    const row = learnedCells(matrix, state.after - 1);
    const average = row.length ? `average ${number(mean(row))} %` : "not measured";
    return heatmap(variant.name, matrix, { most: 100, digits: 1, until: state.after, note: `${average}, seed ${Number(run.seed)}` });
  });
  at("matrices").innerHTML = found.join("") || '<p class="dim">Choose a method above.</p>';
}

function frame(width, height, box, x, y, xTitle, yTitle) {
  let body = `<path class="axis" d="M${box.left},${box.top}V${box.bottom}H${box.right}"/>`;
  y.ticks.forEach((t) => { body += `<text x="${box.left - 6}" y="${y.to(t) + 4}" text-anchor="end" class="faint">${t}</text><path class="axis" d="M${box.left},${y.to(t)}H${box.right}" opacity=".5"/>`; });
  x.ticks.forEach(([t, text]) => { body += `<text x="${x.to(t)}" y="${box.bottom + 16}" text-anchor="middle" class="faint">${escape(text)}</text>`; });
  body += `<text x="${(box.left + box.right) / 2}" y="${height - 4}" text-anchor="middle" class="faint">${escape(xTitle)}</text>`;
  return body + `<text x="4" y="12" class="faint">${escape(yTitle)}</text>`;
}

function scale(values, from, to) {
  const low = Math.min(...values), high = Math.max(...values), span = high - low || 1;
  return (value) => from + (to - from) * (value - low) / span;
}

function percentAxis(values, box) {
  const most = Math.ceil(Math.max(10, ...values) / 10) * 10;
  const least = Math.min(most - 10, Math.floor(Math.min(...values, most) / 10) * 10);
  const step = most - least > 50 ? 20 : most - least > 20 ? 10 : 5;
  const to = (value) => box.bottom - (box.bottom - box.top) * (value - least) / (most - least);
  return { to, ticks: Array.from({ length: Math.floor((most - least) / step) + 1 }, (_, i) => least + step * i) };
}

function drawCurves() {
  const size = experiment().tasks, box = { left: 40, right: 560, top: 20, bottom: 260 };
  const lines = chosen().map((variant) => {
    const points = Array.from({ length: size }, (_, i) => {
      const rows = variant.runs.map(matrixOf).filter((matrix) => matrix && matrix[i]).map((matrix) => learnedCells(matrix, i));
      const means = rows.filter((row) => row.length).map(mean);
      return means.length ? mean(means) : null;
    });
    return { variant, points };
  });
  const y = percentAxis(lines.flatMap((line) => line.points.filter((p) => p !== null)), box);
  const x = { to: scale([1, Math.max(size, 2)], box.left + 10, box.right - 10), ticks: Array.from({ length: size }, (_, i) => [i + 1, String(i + 1)]) };
  let body = frame(720, 300, box, x, y, "tasks learned", "percent");
  body += `<path d="M${x.to(state.after)},${box.top}V${box.bottom}" stroke="var(--dim)" stroke-dasharray="4 4"/>`;
  const ends = [];
  lines.forEach(({ variant, points }) => {
    const known = points.map((p, i) => [i + 1, p]).filter(([, p]) => p !== null);
    if (!known.length) return;
    body += `<polyline points="${known.map(([t, p]) => `${x.to(t)},${y.to(p)}`).join(" ")}" fill="none" stroke="${colour(variant.slot)}" stroke-dasharray="${dashes(variant.slot)}" stroke-width="2.2"/>`;
    known.forEach(([t, p]) => { body += `<circle cx="${x.to(t)}" cy="${y.to(p)}" r="3" fill="${colour(variant.slot)}"><title>${escape(variant.name)}, ${t} tasks: ${number(p)} %</title></circle>`; });
    ends.push({ y: y.to(known[known.length - 1][1]), text: variant.name, slot: variant.slot });
  });
  ends.sort((a, b) => a.y - b.y).forEach((end, i) => { if (i) end.y = Math.max(end.y, ends[i - 1].y + 13); });
  ends.forEach((end) => { body += `<text x="${box.right + 6}" y="${end.y + 4}" style="fill:${colour(end.slot)}">${escape(end.text)}</text>`; });
  at("curves").innerHTML = svg(720, 300, "Average accuracy while tasks arrive", body);
}

function drawTradeoff() {
  const box = { left: 40, right: 560, top: 20, bottom: 260 };
  const points = chosen().map((variant) => {
    const finals = variant.runs.map(matrixOf).filter(Boolean).map((m) => mean(m[m.length - 1].filter((v) => v !== null)));
    return { variant, accuracy: finals.length ? mean(finals) : null, bytes: variant.bytes };
  }).filter((point) => point.accuracy !== null);
  const most = Math.max(0, ...points.map((p) => p.bytes / 2 ** 20)) || 1;
  const y = percentAxis(points.map((p) => p.accuracy), box);
  const x = { to: scale([0, most], box.left + 12, box.right - 110), ticks: [0, 0.25, 0.5, 0.75, 1].map((s) => [s * most, (s * most).toPrecision(2)]) };
  let body = frame(720, 300, box, x, y, "megabytes of images kept", "percent");
  const labels = points.map((p) => ({ ...p, x: x.to(p.bytes / 2 ** 20), y: y.to(p.accuracy) })).sort((a, b) => a.x - b.x || a.y - b.y);
  labels.forEach((p, i) => {
    p.text = p.y + 4;
    const near = labels.slice(0, i).filter((q) => Math.abs(q.x - p.x) < 150);
    while (near.some((q) => Math.abs(q.text - p.text) < 12)) p.text += 3;
    body += `<circle cx="${p.x}" cy="${p.y}" r="5" fill="${colour(p.variant.slot)}"/><text x="${p.x + 9}" y="${p.text}">${escape(p.variant.name)} ${number(p.accuracy)}</text>`;
  });
  at("tradeoff").innerHTML = svg(720, 300, "Accuracy against megabytes of images kept", body);
}

function driftRuns() {
  const hasChain = ({ run }) => Number(run.drift.rectified.some((row) => row.some((value) => value !== null)));
  return experiment().variants
    .flatMap((variant) => variant.runs.filter((run) => run.drift).map((run) => ({ name: `${variant.name}, seed ${run.seed}`, run })))
    .sort((a, b) => hasChain(b) - hasChain(a));
}

function drawDrift() {
  const runs = driftRuns();
  at("drift").hidden = !runs.length;
  if (!runs.length) return;
  const drift = (runs[at("drift-run").value] || runs[0]).run.drift, task = Number(at("drift-task").value || 0);
  const pairs = [...drift.drifted, ...drift.rectified].flat().filter((v) => v !== null);
  const most = Math.max(...pairs, 1e-9);
  at("drifted").innerHTML = heatmap("RMSE, drifted", drift.drifted, { most, digits: 2, until: state.after, note: "darker is worse", reverse: true });
  at("rectified").innerHTML = heatmap("RMSE, rectified", drift.rectified, { most, digits: 2, until: state.after, note: "through the chain", reverse: true });
  const place = (drift.scatter || [])[task];
  if (!place || !place.original.length) { at("scatter").innerHTML = '<p class="dim">This run has no points.</p>'; return; }
  const step = state.after - task - 2, box = { left: 8, right: 292, top: 40, bottom: 268 };
  const sets = [["original", place.original, 0], ["drifted", place.drifted[step], 1], ["rectified", place.rectified[step], 2]];
  const all = [place.original, ...place.drifted, ...place.rectified.filter(Boolean)].flat();
  const x = scale(all.map((p) => p[0]), box.left, box.right), y = scale(all.map((p) => p[1]), box.bottom, box.top);
  let body = `<rect x="1" y="30" width="298" height="246" class="axis"/>`;
  sets.forEach(([name, points, index], i) => {
    body += `<circle cx="${12 + i * 95}" cy="12" r="5" fill="${colour(index)}"/><text x="${21 + i * 95}" y="16">${name}</text>`;
    (points || []).forEach((p) => { body += `<circle cx="${x(p[0])}" cy="${y(p[1])}" r="3.2" fill="${colour(index)}" opacity=".75"/>`; });
  });
  const row = state.after - 1, text = step >= 0
    ? `after task ${state.after}: RMSE drifted ${number(drift.drifted[row][task], 3)}, rectified ${number(drift.rectified[row][task], 3)}`
    : `task ${task + 1} is ${step === -1 ? "just learned" : "not learned yet"}`;
  body += `<text x="2" y="292" class="faint">${text}</text>`;
  at("scatter").innerHTML = svg(300, 298, `Features of task ${task + 1}, ${text}`, body);
}

function drawDots() {
  const slots = [...state.shown].sort((a, b) => a - b);
  at("methods").querySelectorAll("span").forEach((dot, i) => { dot.style.color = state.shown.has(i) ? colour(slots.indexOf(i)) : "var(--line)"; });
}

function draw() {
  drawDots();
  drawMatrices();
  drawCurves();
  drawTradeoff();
  drawDrift();
  at("now").value = state.after;
}

function choose(index) {
  stop();
  state.experiment = index;
  const { variants, tasks } = experiment();
  state.after = tasks;
  const wanted = ["finetune", "er", "derpp", "rfe", "rfe-p", "rfe-b", "joint"];
  const first = variants.map((v, i) => [v, i]).filter(([v]) => wanted.includes(v.method)).map(([, i]) => i);
  state.shown = new Set((first.length ? first : variants.map((_, i) => i)).slice(0, 8));
  const seeds = [...new Set(variants.flatMap((v) => v.runs.map((run) => run.seed)))].sort((a, b) => a - b);
  state.seed = seeds[0];
  at("seed").innerHTML = seeds.map((seed) => `<option value="${Number(seed)}">${Number(seed)}</option>`).join("");
  at("methods").innerHTML = variants.map((v, i) => `<label><input type="checkbox" value="${i}"${state.shown.has(i) ? " checked" : ""}> <span aria-hidden="true">●</span> ${escape(v.name)}</label>`).join("");
  Object.assign(at("after"), { max: tasks, value: tasks });
  at("drift-run").innerHTML = driftRuns().map(({ name }, i) => `<option value="${i}">${escape(name)}</option>`).join("");
  at("drift-task").innerHTML = Array.from({ length: tasks - 1 }, (_, i) => `<option value="${i}">${i + 1}</option>`).join("");
  document.querySelectorAll("#tables details").forEach((block, i) => { block.open = i === index; });
  draw();
}

function stop() { clearInterval(state.playing); state.playing = null; at("play").textContent = "Play"; }

function play() {
  if (state.playing) { stop(); return; }
  at("play").textContent = "Stop";
  state.after = 0;
  const tick = () => {
    state.after += 1;
    at("after").value = state.after;
    draw();
    if (state.after >= experiment().tasks) stop();
  };
  state.playing = setInterval(tick, 700);
  tick();
}

function theme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  at("theme").textContent = dark ? "Light" : "Dark";
}

at("experiment").innerHTML = DATA.experiments.map((e, i) => `<option value="${i}">${escape(e.title)}</option>`).join("");
at("experiment").addEventListener("change", (event) => choose(Number(event.target.value)));
at("seed").addEventListener("change", (event) => { state.seed = Number(event.target.value); draw(); });
at("evaluation").addEventListener("change", (event) => { state.evaluation = event.target.value; draw(); });
at("methods").addEventListener("change", (event) => {
  const index = Number(event.target.value);
  if (event.target.checked) state.shown.add(index); else state.shown.delete(index);
  draw();
});
at("after").addEventListener("input", (event) => { stop(); state.after = Number(event.target.value); draw(); });
at("drift-run").addEventListener("change", drawDrift);
at("drift-task").addEventListener("change", drawDrift);
at("play").addEventListener("click", play);
at("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme !== "dark"));
addEventListener("beforeprint", () => document.querySelectorAll("#tables details").forEach((block) => { block.open = true; }));
theme(matchMedia("(prefers-color-scheme: dark)").matches);
choose(0);
