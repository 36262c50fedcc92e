// The controls, and the first drawing.
let playing = null;

function draw() {
  followChoice();
  drawLegend();
  drawCurves();
  drawTradeoff();
  drawMatrices();
  drawDrift();
  at("now").value = state.step;
  at("num-chosen").textContent = `${state.chosen.size} of ${experiment().variants.length} shown`;
}

function change() {
  draw();
  writeAddress();
}

function filterMethods() {
  const wanted = at("filter").value.trim().toLowerCase();
  all("#methods label").forEach((label) => { label.hidden = !label.textContent.toLowerCase().includes(wanted); });
}

function fillControls() {
  stop();
  const { variants, tasks } = experiment();
  at("experiment").value = state.experiment;
  at("seed").innerHTML = ["all", ...seedsOf(experiment())].map((seed) => `<option value="${escape(seed)}">${seed === "all" ? "mean of all" : escape(seed)}</option>`).join("");
  at("seed").value = state.seed;
  all("#metric input").forEach((input) => {
    input.checked = input.value === state.metric;
    input.parentElement.hidden = !variants.some((v) => v.runs.some((run) => run[input.value]));
  });
  at("methods").innerHTML = variants.map((v, i) => `<label><input type="checkbox" value="${i}"> ${dot(v)} ${escape(v.name)}</label>`).join("");
  Object.assign(at("after"), { max: tasks, value: state.step });
  at("drift-run").innerHTML = driftRuns().map(({ name }, i) => `<option value="${i}">${escape(name)}</option>`).join("");
  at("drift-task").innerHTML = range(tasks - 1).map((i) => `<option value="${i}">${i + 1}</option>`).join("");
  checkMethods();
  filterMethods();
  draw();
}

function checkMethods() {
  all("#methods input").forEach((input) => { input.checked = state.chosen.has(Number(input.value)); });
}

function chooseMethods(indices) {
  state.chosen = new Set(indices);
  checkMethods();
  change();
}

function stop() {
  clearInterval(playing);
  playing = null;
  at("play").textContent = "Play";
}

function setStep(step) {
  state.step = step;
  at("after").value = step;
  change();
}

function play() {
  if (playing) { stop(); return; }
  at("play").textContent = "Stop";
  setStep(1);
  playing = setInterval(() => {
    if (state.step < experiment().tasks) setStep(state.step + 1);
    if (state.step >= experiment().tasks) stop();
  }, 700);
}

function theme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  at("theme").textContent = dark ? "Light" : "Dark";
}

function restore() {
  readAddress();
  fillControls();
}

at("experiment").innerHTML = DATA.experiments.map((e, i) => `<option value="${i}">${escape(e.title)}</option>`).join("");
at("experiment").addEventListener("change", (event) => { selectExperiment(Number(event.target.value)); fillControls(); writeAddress(); });
at("seed").addEventListener("change", (event) => { state.seed = event.target.value === "all" ? "all" : Number(event.target.value); change(); });
at("metric").addEventListener("change", (event) => { state.metric = event.target.value; change(); });
at("methods").addEventListener("change", (event) => {
  const index = Number(event.target.value);
  if (event.target.checked) state.chosen.add(index); else state.chosen.delete(index);
  change();
});
at("filter").addEventListener("input", filterMethods);
at("choose-default").addEventListener("click", () => chooseMethods(experiment().shown));
at("choose-matching").addEventListener("click", () => chooseMethods(all("#methods label:not([hidden]) input").map((input) => Number(input.value))));
at("choose-none").addEventListener("click", () => chooseMethods([]));
at("after").addEventListener("input", (event) => { stop(); setStep(Number(event.target.value)); });
at("drift-run").addEventListener("change", drawDrift);
at("drift-task").addEventListener("change", drawDrift);
at("play").addEventListener("click", play);
at("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme !== "dark"));
addEventListener("resize", () => { drawCurves(); drawTradeoff(); });
addEventListener("hashchange", () => { if (location.hash.includes("=")) restore(); });
addEventListener("beforeprint", () => all("details:not(#chooser)").forEach((block) => { block.open = true; }));
theme(matchMedia("(prefers-color-scheme: dark)").matches);
makeSortable();
addSwatches();
restore();
