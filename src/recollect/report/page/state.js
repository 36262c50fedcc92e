"use strict";
// What is shown, and its form in the address, so that a link restores it.
const DATA = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const state = { experiment: 0, metric: "cil", seed: "all", step: 1, chosen: new Set() };
const METRICS = ["cil", "til", "task", "chain"];

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escape = (text) => String(text).replace(/[&<>"]/g, (c) => ESCAPES[c]);
const number = (value, digits = 1) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const range = (size) => Array.from({ length: size }, (_, i) => i);

const experiment = () => DATA.experiments[state.experiment];
const seedsOf = ({ variants }) => [...new Set(variants.flatMap((v) => v.runs.map((run) => run.seed)))].sort((a, b) => a - b);

// Half of Student's 95 % interval; null with fewer than two values.
function halfWidth(values) {
  if (values.length < 3) return null;
  const centre = mean(values);
  const variance = values.reduce((sum, value) => sum + (value - centre) ** 2, 0) / (values.length - 1);
  return DATA.quantiles[values.length] * Math.sqrt(variance / values.length);
}

// The chosen variants, with the number that each has among the chosen ones of its method: it selects the dashes.
function chosenVariants() {
  const counts = {};
  return experiment().variants.filter((_, i) => state.chosen.has(i)).map((variant) => {
    counts[variant.method] = (counts[variant.method] ?? -1) + 1;
    return { ...variant, dashes: ["", "7 4", "2 3", "9 3 2 3"][counts[variant.method] % 4] };
  });
}

// The matrices of the chosen metric: of all seeds, or of the chosen one.
function matricesOf(variant) {
  const runs = state.seed === "all" ? variant.runs : variant.runs.filter((run) => run.seed === state.seed);
  return runs.map((run) => run[state.metric]).filter(Boolean);
}

// What was measured on tasks learned by then; with fixed heads a row also has tasks to come.
function learnedCells(matrix, row) {
  return matrix[row].slice(0, row + 1).filter((value) => value !== null);
}

// The average accuracy after a task, one value per seed.
function averagesAfter(variant, row) {
  return matricesOf(variant).map((matrix) => learnedCells(matrix, row)).filter((cells) => cells.length).map(mean);
}

function selectExperiment(index) {
  state.experiment = index;
  state.step = experiment().tasks;
  state.chosen = new Set(experiment().shown);
  if (!seedsOf(experiment()).includes(state.seed)) state.seed = "all";
}

function writeAddress() {
  const { title, tasks, variants, shown } = experiment();
  const query = new URLSearchParams({ experiment: title, metric: state.metric, seed: state.seed });
  if (state.step !== tasks) query.set("task", state.step);
  const isDefault = shown.length === state.chosen.size && shown.every((i) => state.chosen.has(i));
  if (!isDefault) [...state.chosen].sort((a, b) => a - b).forEach((i) => query.append("method", variants[i].name));
  if (!state.chosen.size) query.set("method", "");
  history.replaceState(null, "", `#${query}`);
}

// Takes over what the address names and this page has; everything else is as at first.
function readAddress() {
  const query = new URLSearchParams(location.hash.slice(1));
  const index = DATA.experiments.findIndex((e) => e.title === query.get("experiment"));
  selectExperiment(Math.max(index, 0));
  state.metric = METRICS.includes(query.get("metric")) ? query.get("metric") : "cil";
  const seed = Number(query.get("seed") || NaN);
  state.seed = seedsOf(experiment()).includes(seed) ? seed : "all";
  state.step = clamp(Math.round(Number(query.get("task"))) || experiment().tasks, 1, experiment().tasks);
  const names = query.getAll("method");
  if (names.length) state.chosen = new Set(range(experiment().variants.length).filter((i) => names.includes(experiment().variants[i].name)));
}
