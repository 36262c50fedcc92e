// Accuracy matrices and feature drift, as tables whose cells are coloured: bright is good, dark is bad.
const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const FEATURES = { original: ["#808080", "s"], drifted: ["#d55e00", "^"], rectified: ["#0072b2", "o"] };

function viridis(share) {
  const place = clamp(share, 0, 1) * (STOPS.length - 1), low = Math.min(Math.floor(place), STOPS.length - 2);
  return STOPS[low].map((c, i) => Math.round(c + (place - low) * (STOPS[low + 1][i] - c)));
}

function luminance(colour) {
  const [r, g, b] = colour.map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// Black or white, whichever has the higher contrast: it is at least 4.5 on any colour.
function paint(share) {
  const colour = viridis(share), light = luminance(colour);
  return `background:rgb(${colour.join(",")});color:${(light + 0.05) / 0.05 > 1.05 / (light + 0.05) ? "#000" : "#fff"}`;
}

function matrixTable(title, note, rows, { most, digits, unit, isError = false }) {
  const head = range(rows.length).map((j) => `<th scope="col">${j + 1}</th>`).join("");
  const body = rows.map((row, i) => {
    const cells = row.map((value, j) => {
      if (value === null || value === undefined) return "<td></td>";
      const text = `after task ${i + 1}, on task ${j + 1}: ${number(value, 2)}${unit}`;
      return `<td style="${paint(isError ? 1 - value / most : value / most)}" title="${text}">${number(value, digits)}</td>`;
    });
    return `<tr${i + 1 > state.step ? ' class="later"' : ""}><th scope="row">${i + 1}</th>${cells.join("")}</tr>`;
  });
  const caption = `<caption>${escape(title)} <span class="dim">${escape(note)}</span></caption>`;
  return `<div class="scroll" tabindex="0" role="region" aria-label="${escape(title)}"><table class="matrix" data-size="${rows.length > 10 ? "large" : "small"}">${caption}`
    + `<thead><tr><th scope="col"><span class="sr">after task, on task</span></th>${head}</tr></thead><tbody>${body.join("")}</tbody></table></div>`;
}

function meanMatrix(matrices) {
  return matrices[0].map((row, i) => row.map((_, j) => {
    const values = matrices.map((matrix) => matrix[i][j]);
    return values.includes(null) ? null : mean(values);
  }));
}

function colourBar(low, high, isError) {
  const stops = (isError ? [...STOPS].reverse() : STOPS).map((c) => `rgb(${c.join(",")})`).join(",");
  return `<p class="bar dim">${low} <span style="background:linear-gradient(to right,${stops})"></span> ${high}</p>`;
}

// The rem that the cells of a row take, as the style sheet has them.
const rowWidth = () => experiment().tasks * (experiment().tasks > 10 ? 1.6 : 2.45);

function drawMatrices() {
  at("explore").style.setProperty("--matrix", rowWidth());
  const known = [], missing = [];
  chosenVariants().forEach((variant) => {
    const matrices = matricesOf(variant);
    if (matrices.length) known.push({ variant, matrix: meanMatrix(matrices), count: matrices.length }); else missing.push(variant.name);
  });
  const most = Math.ceil(Math.max(10, ...known.flatMap((k) => k.matrix.flat().filter((v) => v !== null))) / 10) * 10;
  const digits = experiment().tasks > 10 ? 0 : 1;
  const tables = known.map(({ variant, matrix, count }) => {
    const values = averagesAfter(variant, state.step - 1), seeds = state.seed === "all" ? `${count} seed${count > 1 ? "s" : ""}` : `seed ${state.seed}`;
    const note = `average ${values.length ? `${number(mean(values))} %` : "not measured"}, ${seeds}`;
    return matrixTable(variant.name, note, matrix, { most, digits, unit: " %" });
  });
  at("matrices").innerHTML = tables.join("");
  at("matrices-scale").innerHTML = colourBar("0 %", `${most} %`, false);
  at("matrices-missing").textContent = missing.length ? `Not measured, or not with this seed: ${missing.join("; ")}.` : "";
}

function driftRuns() {
  const hasPoints = ({ run }) => (run.drift.scatter || []).length > 0;
  const hasChain = ({ run }) => run.drift.rectified.some((row) => row.some((value) => value !== null));
  return experiment().variants
    .flatMap((variant) => variant.runs.filter((run) => run.drift).map((run) => ({ name: `${variant.name}, seed ${run.seed}`, run })))
    .sort((a, b) => hasChain(b) - hasChain(a) || hasPoints(b) - hasPoints(a));
}

function drawDrift() {
  const runs = driftRuns();
  at("drift").hidden = !runs.length;
  if (!runs.length) return;
  const drift = (runs[at("drift-run").value] || runs[0]).run.drift, task = Number(at("drift-task").value || 0);
  const most = Math.max(...[...drift.drifted, ...drift.rectified].flat().filter((v) => v !== null), 1e-9);
  const options = { most, digits: experiment().tasks > 10 ? 1 : 2, unit: "", isError: true };
  at("drifted").innerHTML = matrixTable("RMSE, drifted", "current features", drift.drifted, options);
  at("rectified").innerHTML = matrixTable("RMSE, rectified", "through the chain", drift.rectified, options);
  at("drift-scale").innerHTML = colourBar("0", number(most, 2), true);
  drawScatter(drift, task);
}

function scale(values, from, to) {
  const low = Math.min(...values), span = Math.max(...values) - low || 1;
  return (value) => from + (to - from) * (value - low) / span;
}

function drawScatter(drift, task) {
  const place = (drift.scatter || [])[task];
  if (!place || !place.original.length) { at("scatter").innerHTML = '<p class="dim">This run has no points.</p>'; return; }
  const later = state.step - task - 2, sets = { original: place.original, drifted: place.drifted[later], rectified: place.rectified[later] };
  const points = [place.original, ...place.drifted, ...place.rectified].filter(Boolean).flat();
  const x = scale(points.map((p) => p[0]), 10, 290), y = scale(points.map((p) => p[1]), 266, 42);
  let body = `<rect x="1" y="30" width="298" height="246" class="axis"/>`;
  Object.entries(FEATURES).forEach(([name, [colour, shape]], i) => {
    body += `${marker({ colour, marker: shape }, 12 + i * 95, 12, 4.5, name)}<text x="${22 + i * 95}" y="16">${name}</text><g opacity=".75">`;
    (sets[name] || []).forEach((p) => { body += marker({ colour, marker: shape }, x(p[0]), y(p[1]), 2.8, name); });
    body += "</g>";
  });
  const row = state.step - 1, text = later >= 0
    ? `After task ${state.step}: RMSE drifted ${number(drift.drifted[row][task], 3)}, rectified ${number(drift.rectified[row][task], 3)}.`
    : `Task ${task + 1} is ${later === -1 ? "just learned" : "not learned yet"}.`;
  at("scatter").innerHTML = `${svg(300, 280, `Features of task ${task + 1}. ${text}`, body)}<p class="dim">${text}</p>`;
}
