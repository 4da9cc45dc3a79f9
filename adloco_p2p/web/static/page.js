// The page of a run. It asks api/run for one document and draws it; api/events signals changes; api/peer has one peer.
// Addresses are relative, so that a web server may show the page below any path. The reader's choices stand behind the # of the
// address, which can be kept and sent.
// Text from other peers only ever becomes text nodes. Nothing is loaded from anywhere else.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 8;
const SMOOTHING = 0.8;  // part of the mean so far in the next one
const FIRST_TEXTS = 4;  // the others on demand
const FIRST_LINES = 15;  // of the ledger, and of the rounds of a peer; the others on demand
const FIRST_PEERS = 20;
const RETRY_SECONDS = 30;  // after the server refused the stream of news, as it does when too many pages are open
const AXES = ["round", "samples", "tokens", "seconds"];
const LEAST_DRAG = 8;  // pixels; less is a click
const view = { run: null, place: 0, axis: "round", range: null, isDragging: false, isLog: false, isSmooth: false, openRounds: new Set(), isWhole: false, areAllTexts: false, areAllPeers: false, cursors: new Map(), peer: "", isWholePeer: false, shownPeer: null };

// --- the address: run, axis, range, log, smooth, peer, plans

function readAddress() {
  const chosen = new URLSearchParams(location.hash.slice(1));
  view.axis = AXES.includes(chosen.get("axis")) ? chosen.get("axis") : "round";
  view.place = /^\d{1,4}$/.test(chosen.get("run") || "") ? Number(chosen.get("run")) : 0;
  const range = (chosen.get("range") || "").split(" ").map(Number);
  view.range = range.length === 2 && range[0] < range[1] ? range : null;
  view.isLog = chosen.get("log") === "1";
  view.isSmooth = chosen.get("smooth") === "1";
  view.peer = chosen.get("peer") || "";
  view.openRounds = new Set((chosen.get("plans") || "").split(" ").filter((word) => /^\d+$/.test(word)).map(Number));
}

// Of what is shown now, with another peer or another run.
function addressOf(peer, place = view.place) {
  const chosen = new URLSearchParams();
  if (place) chosen.set("run", String(place));
  if (view.range) chosen.set("range", view.range.join(" "));
  if (view.axis !== "round") chosen.set("axis", view.axis);
  if (view.isLog) chosen.set("log", "1");
  if (view.isSmooth) chosen.set("smooth", "1");
  if (peer) chosen.set("peer", peer);
  if (view.openRounds.size && place === view.place) chosen.set("plans", [...view.openRounds].sort((a, b) => a - b).join(" "));
  return `#${chosen}`;
}

function writeAddress() {
  history.replaceState(null, "", addressOf(view.peer));
  showChoice();
}

function showChoice() {
  for (const button of document.querySelectorAll("[data-axis]")) button.setAttribute("aria-pressed", String(button.dataset.axis === view.axis));
  for (const link of document.querySelectorAll("a[data-place]")) link.setAttribute("href", addressOf("", Number(link.dataset.place)));
  at("whole").hidden = view.range === null;
  at("as-csv").setAttribute("href", `api/run.csv?run=${view.place}`);
  at("as-json").setAttribute("href", `api/run?run=${view.place}`);
  at("log").setAttribute("aria-pressed", String(view.isLog));
  at("smooth").setAttribute("aria-pressed", String(view.isSmooth));
  for (const link of document.querySelectorAll("a[data-peer]")) link.setAttribute("href", addressOf(link.dataset.peer));
  at("peer-close").setAttribute("href", addressOf(""));
}

// --- elements

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const at = (id) => document.getElementById(id);
const colour = (instance) => instance % COLOURS;

// --- numbers as people read them

function count(value) {
  if (value === null || value === undefined) return "-";
  const prefixes = ["", "k", "M", "G", "T", "P"];
  let scale = 0;
  while (Math.abs(value) >= 999.5 && scale < prefixes.length - 1) { value /= 1000; scale += 1; }
  const digits = Math.abs(value) >= 99.95 || (scale === 0 && Number.isInteger(value)) ? 0 : Math.abs(value) >= 9.995 ? 1 : 2;
  return value.toFixed(digits) + prefixes[scale];
}

function bytes(value) {
  if (value === null || value === undefined) return "-";
  const text = count(value);
  const prefix = /[a-zA-Z]$/.test(text) ? text.slice(-1) : "";
  return `${prefix ? text.slice(0, -1) : text} ${prefix}B`;
}

// A faster measurement, as on one machine, is of memory and not of a link (MAX_LINK_RATE of views/units.py).
const linkRate = (rate) => (rate === null || rate === undefined ? "-" : rate > 1e9 ? "> 1 GB/s" : `${bytes(rate)}/s`);
const loss = (value) => (value === null || value === undefined ? "-" : value.toFixed(3));
const percent = (value) => (value === null || value === undefined ? "-" : `${(100 * value).toFixed(value && value < 0.1 ? 1 : 0)}%`);
const short = (peer) => (peer.length <= 14 ? peer : `..${peer.slice(-12)}`);
const plural = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;

const milliseconds = (seconds) => (seconds === null ? "-" : `${count(1000 * seconds)} ms`);

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// Rounds and samples have no halves: a tick between two of them gets no text.
function whole(number) {
  return Number.isInteger(number) ? count(number) : "";
}

// Of an axis: ticks may be less than a minute apart.
function clock(seconds) {
  const [hours, minutes, rest] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, Math.round(seconds % 60)];
  const two = (number) => String(number).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

// --- charts

// Without spreading the values into arguments, of which a browser takes a hundred thousand or so.
function extent(values) {
  return values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
}

function niceStep(span, wanted) {
  const rough = Math.max(span, 1e-9) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5, 10].find((factor) => factor * power >= rough) || 10);
}

function linearTicks(low, high, wanted) {
  const step = niceStep(high - low, wanted);
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-6; index += 1) ticks.push(Number((index * step).toPrecision(12)));
  return ticks;
}

function powerTicks(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log2(low)); 2 ** power <= high * 1.001; power += 1) if (2 ** power >= low * 0.999) ticks.push(2 ** power);
  if (ticks.length < 2) return linearTicks(low, high, 4).filter((tick) => tick > 0);
  const stride = Math.ceil(ticks.length / 6);
  return ticks.filter((_, index) => index % stride === 0);
}

// A frame with axes; `place` maps a value pair to pixels.
function frame(holder, { height, left, xs, ys, isLogarithmic, xText, yText, label }) {
  const width = Math.max(holder.clientWidth, 240);
  const [bottom, right, top] = [22, 12, 8];
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "slider", tabindex: 0, "aria-label": label });
  // A peer reports its losses itself: 0 has no place on a logarithmic axis, and 0.1 is no margin beside 1e30.
  let [low, high] = extent(isLogarithmic ? ys.filter((value) => value > 0) : ys);
  if (isLogarithmic) { low /= 1.1; high *= 1.15; } else {
    const margin = (high - low) * 0.06 || Math.abs(high) * 0.06 || 0.1;
    low -= margin;
    high += margin;
  }
  const [first, end] = extent(xs);
  const last = first === end ? first + 1 : end;
  const flat = isLogarithmic ? (value) => Math.log2(Math.max(value, low)) : (value) => value;
  const x = (value) => left + ((value - first) / (last - first)) * (width - left - right);
  const y = (value) => top + (1 - (flat(value) - flat(low)) / (flat(high) - flat(low))) * (height - top - bottom);
  for (const tick of isLogarithmic ? powerTicks(low, high) : linearTicks(low, high, 5)) {
    svg.append(shape("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }));
    svg.append(shape("text", { class: "axis", x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, yText(tick)));
  }
  for (const tick of linearTicks(first, last, Math.min(8, Math.floor(width / 80)))) {
    svg.append(shape("text", { class: "axis", x: x(tick), y: height - 5, "text-anchor": "middle" }, xText(tick)));
  }
  const valueAt = (pixel) => first + ((pixel - left) / (width - left - right)) * (last - first);
  return { svg, x, y, valueAt, left, width, height, bottom, right, top };
}

function curve(points, place, classes) {
  if (points.length === 1) {
    const [cx, cy] = place(points[0]);
    return shape("circle", { cx, cy, r: 3, class: classes.replace(/\bs(\d)\b/, "f$1").replace("curve", "dot") });
  }
  const path = points.map((point, index) => { const [px, py] = place(point); return `${index ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`; });
  return shape("path", { d: path.join(""), class: classes });
}

// The nearest place on the horizontal axis is read out above the chart; before anybody points, the last one. With the keyboard
// on the chart, the arrow keys, Home and End move along; a new drawing keeps the keyboard and the place.
function readable(chart, holder, readout, places, describe) {
  const cursor = shape("line", { class: "cursor", y1: chart.top, y2: chart.height - chart.bottom, visibility: "hidden" });
  chart.svg.append(cursor);
  const sorted = [...places].sort((a, b) => a - b);
  let index = sorted.length - 1;
  const update = (to, isShown) => {
    index = to;
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, chart.x(sorted[index]));
    cursor.setAttribute("visibility", isShown ? "visible" : "hidden");
    readout.replaceChildren(...describe(sorted[index]));
    const values = { valuemin: 0, valuemax: sorted.length - 1, valuenow: index, valuetext: readout.textContent };
    for (const [name, value] of Object.entries(values)) chart.svg.setAttribute(`aria-${name}`, value);
  };
  const forget = () => { view.cursors.delete(holder.id); update(sorted.length - 1, false); };
  chart.svg.addEventListener("pointermove", (event) => {
    const inside = pixelOf(chart, event);
    update(sorted.reduce((best, place, at) => (Math.abs(chart.x(place) - inside) < Math.abs(chart.x(sorted[best]) - inside) ? at : best), 0), true);
  });
  chart.svg.addEventListener("pointerleave", forget);
  chart.svg.addEventListener("blur", () => { if (holder.contains(chart.svg)) forget(); });
  chart.svg.addEventListener("keydown", (event) => {
    const wanted = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: sorted.length - 1 }[event.key];
    if (wanted === undefined) return;
    event.preventDefault();
    update(Math.min(Math.max(wanted, 0), sorted.length - 1), true);
    view.cursors.set(holder.id, sorted[index]);
  });
  const hasKeyboard = holder.contains(document.activeElement);
  const kept = hasKeyboard ? sorted.indexOf(view.cursors.get(holder.id)) : -1;
  holder.replaceChildren(chart.svg);
  if (hasKeyboard) chart.svg.focus({ preventScroll: true });
  if (kept >= 0) view.cursors.set(holder.id, sorted[kept]);  // the old drawing forgot it when it lost the keyboard
  update(kept < 0 ? sorted.length - 1 : kept, kept >= 0);
}

function pixelOf(chart, event) {
  const box = chart.svg.getBoundingClientRect();
  return ((event.clientX - box.left) / box.width) * chart.width;
}

// A drag along the horizontal axis chooses a range of it; a double click, or a button above, the whole.
function zoomable(chart) {
  const chosen = shape("rect", { class: "chosen", y: chart.top, height: chart.height - chart.top - chart.bottom, visibility: "hidden" });
  chart.svg.append(chosen);
  let begun = null;
  chart.svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    begun = pixelOf(chart, event);
    view.isDragging = true;
    chart.svg.setPointerCapture(event.pointerId);
  });
  chart.svg.addEventListener("pointermove", (event) => {
    if (begun === null) return;
    const [from, to] = [begun, pixelOf(chart, event)].sort((a, b) => a - b);
    for (const [name, value] of [["x", from], ["width", to - from], ["visibility", "visible"]]) chosen.setAttribute(name, value);
  });
  const end = (event) => {
    if (begun === null) return;
    const [from, to] = [begun, pixelOf(chart, event)].sort((a, b) => a - b);
    begun = null;
    view.isDragging = false;
    if (event.type === "pointerup" && to - from >= LEAST_DRAG) zoom([chart.valueAt(from), chart.valueAt(to)].map((value) => Number(value.toPrecision(6))));
    else chosen.setAttribute("visibility", "hidden");
  };
  for (const name of ["pointerup", "pointercancel", "lostpointercapture"]) chart.svg.addEventListener(name, end);
  chart.svg.addEventListener("dblclick", () => zoom(null));
}

function zoom(range) {
  view.range = range;
  writeAddress();
  drawCharts();
}

// The curves of one chart, with their points in the chosen range; all points where the chart has fewer than two places in it.
function inRange(curves) {
  if (view.range === null) return curves;
  const isInside = (point) => point[view.axis] >= view.range[0] && point[view.axis] <= view.range[1];
  const inside = curves.map((each) => ({ ...each, points: each.points.filter(isInside) }));
  return new Set(inside.flatMap((each) => each.points.map((point) => point[view.axis]))).size < 2 ? curves : inside;
}

function perInstance(run, place, axis, text) {
  const parts = [];
  for (const instance of run.instances) {
    const point = instance.points.find((candidate) => candidate[axis] === place);
    const words = point && text(point);
    if (words) parts.push(element("b", { class: `f${colour(instance.id)}` }, `  #${instance.id} `), words);
  }
  return parts;
}

function waiting(id, text) {
  at(id).replaceChildren(element("p", { class: "quiet" }, text));
  at(`${id}-readout`).replaceChildren();
}

// The points that have a place on the axis: tokens follow from samples, and only a node on this machine has a clock.
function placed(run, points) {
  let mean = null;
  const found = points.map((point) => {
    if (point.loss !== null) mean = mean === null || !view.isSmooth ? point.loss : SMOOTHING * mean + (1 - SMOOTHING) * point.loss;
    return { ...point, loss: point.loss === null ? null : mean, tokens: point.samples * run.run.sequence_length };
  });
  return found.filter((point) => point[view.axis] !== null);
}

function drawLoss(run) {
  const axis = view.axis;
  const onAxis = inRange(run.instances.map((instance) => ({ id: instance.id, points: placed(run, instance.points) })));
  const all = onAxis.flatMap((instance) => instance.points);
  const ys = all.flatMap((point) => [point.loss, point.heldout]).filter((value) => value !== null);
  if (!ys.length) {
    const isUntimed = run.instances.some((instance) => instance.points.length);
    return waiting("loss", isUntimed ? "no node of this machine has timed these rounds; choose another axis" : "no round has been reported yet; a round is in the ledger two rounds later");
  }
  const entropy = run.now.unigram_entropy;
  const hasReference = entropy !== null && entropy <= extent(ys)[1] * 1.02;
  const holder = at("loss");
  const chart = frame(holder, {
    height: 300, left: 44, xs: all.map((point) => point[axis]), ys: hasReference ? [...ys, entropy] : ys, isLogarithmic: view.isLog,
    xText: axis === "seconds" ? clock : whole, yText: (tick) => tick.toFixed(2), label: "loss of every instance",
  });
  if (hasReference) {
    chart.svg.append(shape("line", { class: "reference", x1: chart.left, x2: chart.width - chart.right, y1: chart.y(entropy), y2: chart.y(entropy) }));
    chart.svg.append(shape("text", { class: "axis", x: chart.width - chart.right, y: chart.y(entropy) - 5, "text-anchor": "end" }, "a unigram model"));
  }
  for (const instance of onAxis) {
    for (const [field, style] of [["loss", "faint"], ["heldout", ""]]) {
      const points = instance.points.filter((point) => point[field] !== null);
      if (points.length) chart.svg.append(curve(points, (point) => [chart.x(point[axis]), chart.y(point[field])], `curve s${colour(instance.id)} ${style}`));
    }
  }
  readable(chart, holder, at("loss-readout"), new Set(all.map((point) => point[axis])), (place) => {
    const round = all.find((point) => point[axis] === place).round;
    return [`round ${round}: `, ...perInstance({ instances: onAxis }, place, axis, (point) => `held out ${loss(point.heldout)}, training ${loss(point.loss)}`)];
  });
  zoomable(chart);
}

// The held-out losses of several runs, one colour for each label.
function drawCompared(run) {
  const rows = run.compared || [];
  at("compared-card").hidden = rows.length < 2;
  if (rows.length < 2) return;
  const labels = [...new Set(rows.map((row) => row.label))];
  const drawn = inRange(rows.map((row) => ({ label: row.label, colour: colour(labels.indexOf(row.label)), points: comparedPoints(row) })));
  const all = drawn.flatMap((row) => row.points);
  drawComparedTable(rows, labels);
  if (!all.length) { waiting("compared", "no held-out loss with a place on this axis yet; choose another axis"); return; }
  const holder = at("compared");
  const chart = frame(holder, {
    height: 260, left: 44, xs: all.map((point) => point[view.axis]), ys: all.map((point) => point.heldout), isLogarithmic: view.isLog,
    xText: view.axis === "seconds" ? clock : whole, yText: (tick) => tick.toFixed(2), label: "held-out loss of every run",
  });
  for (const row of drawn) {
    if (row.points.length) chart.svg.append(curve(row.points, (point) => [chart.x(point[view.axis]), chart.y(point.heldout)], `curve s${row.colour}`));
  }
  readable(chart, holder, at("compared-readout"), new Set(all.map((point) => point[view.axis])), (place) => drawn.flatMap((row) => {
    const before = row.points.filter((point) => point[view.axis] <= place);
    return before.length ? [element("b", { class: `f${row.colour}` }, `${row.label} `), `${loss(before[before.length - 1].heldout)}   `] : [];
  }));
  zoomable(chart);
}

function comparedPoints(row) {
  const length = row.samples ? row.tokens / row.samples : 0;
  return row.points.map((point) => ({ ...point, tokens: point.samples * length })).filter((point) => point[view.axis] !== null);
}

function drawComparedTable(rows, labels) {
  table("compared-runs", [["run"], ["", "left"], ["seed"], ["rounds"], ["samples"], ["tokens"], ["time"], ["held-out loss"], ["state"]], rows.map((each, place) => row([
    [element("a", { href: addressOf("", place), "data-place": place, class: `f${colour(labels.indexOf(each.label))}`, ...(place === view.place ? { "aria-current": "page" } : {}) }, each.label)],
    [`${each.name} ${each.run.slice(0, 8)}`, "left quiet"], [each.seed], [each.rounds], [count(each.samples)], [count(each.tokens)],
    [duration(each.seconds)], [loss(each.heldout_loss)], [each.is_finished ? "finished" : "not finished"],
  ])));
}

function drawBatch(run) {
  const all = run.instances.flatMap((instance) => instance.points);
  const ys = all.flatMap((point) => [point.requested, point.effective]).filter((value) => value > 0);
  if (!ys.length) return waiting("batch", "no round has been reported yet");
  const holder = at("batch");
  const chart = frame(holder, {
    height: 240, left: 44, xs: all.map((point) => point.round), ys, isLogarithmic: true, xText: whole, yText: whole, label: "batch of every instance",
  });
  for (const instance of run.instances) {
    const points = instance.points.filter((point) => point.requested > 0 && point.effective > 0);
    if (!points.length) continue;
    chart.svg.append(curve(points, (point) => [chart.x(point.round), chart.y(point.requested)], `curve dashed s${colour(instance.id)}`));
    chart.svg.append(curve(points, (point) => [chart.x(point.round), chart.y(point.effective)], `curve s${colour(instance.id)}`));
    for (const point of points.length <= 60 ? points : []) {
      if (point.mode === "accumulate") chart.svg.append(shape("circle", { cx: chart.x(point.round), cy: chart.y(point.effective), r: 3, class: `ring s${colour(instance.id)}` }));
    }
  }
  readable(chart, holder, at("batch-readout"), new Set(all.map((point) => point.round)), (place) => [
    `round ${place}: `, ...perInstance(run, place, "round", (point) => `${point.requested} asked, ${point.effective} used, ${point.mode}`),
  ]);
}

function drawComputing(run) {
  const points = run.own === null ? [] : run.own.utilisation;
  at("computing-part").hidden = !points.length;
  if (!points.length) return;
  const holder = at("computing");
  const chart = frame(holder, {
    height: 140, left: 44, xs: points.map((point) => point.round), ys: [0, 1], isLogarithmic: false, xText: whole, yText: percent,
    label: "part of every round in which this node computed",
  });
  chart.svg.append(curve(points, (point) => [chart.x(point.round), chart.y(point.part)], "curve s2"));
  readable(chart, holder, at("computing-readout"), points.map((point) => point.round), (place) => [
    `round ${place}: computing ${percent(points.find((point) => point.round === place).part)} of the time`,
  ]);
}

// Of all peers; only a node on this machine has a clock.
function drawSpeed(run) {
  const points = run.throughput;
  at("speed-card").hidden = points.length < 2;
  if (points.length < 2) return;
  const rounds = points.map((point) => point.round);
  for (const [id, field, words, ys] of [
    ["throughput", "tokens_per_second", (value) => `${count(value)} tokens/s`, [0]],
    ["swarm-computing", "computing", (value) => `computing ${percent(value)} of the time`, [0, 1]],
  ]) {
    const chart = frame(at(id), {
      height: 160, left: 44, xs: rounds, ys: [...ys, ...points.map((point) => point[field])], isLogarithmic: false, xText: whole,
      yText: field === "computing" ? percent : count, label: field === "computing" ? "part of every round in which its hosts computed" : "tokens per second of all peers by round",
    });
    chart.svg.append(curve(points, (point) => [chart.x(point.round), chart.y(point[field])], "curve s2"));
    readable(chart, at(id), at(`${id}-readout`), rounds, (place) => [`round ${place}: ${words(points.find((point) => point.round === place)[field])}`]);
  }
}

function drawDurations(run) {
  const bins = run.own === null ? [] : run.own.durations;
  if (!bins.length) return;
  const holder = at("durations");
  const chart = frame(holder, {
    height: 140, left: 44, xs: bins.flatMap((bin) => [bin.from, bin.to]), ys: [0, ...bins.map((bin) => bin.rounds)], isLogarithmic: false,
    xText: clock, yText: whole, label: "how many rounds took how long",
  });
  for (const bin of bins) {
    const [x, y] = [chart.x(bin.from), chart.y(bin.rounds)];
    chart.svg.append(shape("rect", { class: "f2", x, y, width: Math.max(chart.x(bin.to) - x - 1, 1), height: chart.y(0) - y }));
  }
  readable(chart, holder, at("durations-readout"), bins.map((bin) => bin.from), (place) => {
    const bin = bins.find((each) => each.from === place);
    return [`${clock(bin.from)} to ${clock(bin.to)}: ${plural(bin.rounds, "round")}`];
  });
}

// One lane per instance from its first boundary to its last; forks and merges tie lanes together at their boundary.
function drawFamily(run) {
  if (!run.instances.length) return waiting("family", "no plan yet");
  const holder = at("family");
  const width = Math.max(holder.clientWidth, 240);
  const [left, right, lane, top, bottom] = [30, 14, 30, 14, 22];
  const height = top + bottom + lane * run.instances.length;
  const last = extent([run.run.rounds, ...run.instances.map((instance) => instance.end), 1])[1];
  const x = (round) => left + (round / last) * (width - left - right);
  const rows = new Map(run.instances.map((instance, index) => [instance.id, top + lane * (index + 0.5)]));
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "group", "aria-label": "forks and merges of the instances" });
  for (const tick of linearTicks(0, last, Math.min(8, Math.floor(width / 80)))) {
    svg.append(shape("line", { class: "grid", x1: x(tick), x2: x(tick), y1: top, y2: height - bottom }));
    svg.append(shape("text", { class: "axis", x: x(tick), y: height - 5, "text-anchor": "middle" }, whole(tick)));
  }
  const family = run.decisions.filter((decision) => decision.kind === "fork" || decision.kind === "merge");
  const readout = at("family-readout");
  const rest = family.length ? `${plural(family.filter((d) => d.kind === "fork").length, "fork")}, ${plural(family.filter((d) => d.kind === "merge").length, "merge")}; point at one for its reason` : "no fork and no merge yet";
  readout.replaceChildren(rest);
  for (const instance of run.instances) {
    const y = rows.get(instance.id);
    svg.append(shape("text", { class: `name f${colour(instance.id)}`, x: 4, y: y + 4 }, String(instance.id)));
    svg.append(shape("line", { class: `life s${colour(instance.id)}`, x1: x(instance.start), x2: Math.max(x(instance.end), x(instance.start) + 1), y1: y, y2: y }));
  }
  for (const decision of family) {
    const isMerge = decision.kind === "merge";
    const hub = isMerge ? decision.targets[0] : decision.sources[0];
    for (const other of (isMerge ? decision.sources : decision.targets).filter((instance) => instance !== hub)) {
      if (!rows.has(other) || !rows.has(hub)) continue;
      const [x1, y1, y2] = [x(decision.round), rows.get(isMerge ? other : hub), rows.get(isMerge ? hub : other)];
      const tie = shape("path", { class: `tie s${colour(isMerge ? other : hub)}`, d: `M${x1} ${y1} C${x1 + 10} ${y1} ${x1 + 10} ${y2} ${x1} ${y2}` });
      svg.append(tie);
    }
    if (!rows.has(hub)) continue;
    const mark = shape("circle", { class: `ring s${colour(hub)}`, cx: x(decision.round), cy: rows.get(hub), r: 5, tabindex: 0, role: "img", "data-decision": `${decision.kind}-${decision.round}-${hub}` });
    const weights = decision.weights.length ? ` by ${decision.weights.map((weight) => weight.toFixed(2)).join(" + ")}` : "";
    const words = `before round ${decision.round}: ${decision.subject}${weights}. ${decision.reason}`;
    mark.append(shape("title", {}, words));
    for (const event of ["pointerenter", "focus"]) mark.addEventListener(event, () => readout.replaceChildren(words));
    for (const event of ["pointerleave", "blur"]) mark.addEventListener(event, () => readout.replaceChildren(rest));
    svg.append(mark);
  }
  holder.replaceChildren(svg);
}

function listInstances(run) {
  at("instances").replaceChildren(...run.instances.filter((instance) => instance.is_alive).map((instance) => element("li", {},
    element("b", { class: `f${colour(instance.id)}` }, `instance ${instance.id} `),
    `held out ${loss(instance.heldout)}, batch ${instance.effective} of ${instance.requested} asked, ${instance.mode}, ${plural(instance.hosts, "host")}. `,
    element("span", { class: "quiet" }, instance.reason))));
}

// --- tables

function row(cells) {
  return element("tr", {}, ...cells.map(([text, classes]) => (text instanceof Node ? element("td", { class: classes || "" }, text) : element("td", { class: classes || "" }, String(text)))));
}

function table(id, headings, rows) {
  at(id).replaceChildren(
    element("thead", {}, element("tr", {}, ...headings.map(([text, classes]) => element("th", { scope: "col", class: classes || "" }, text)))),
    element("tbody", {}, ...rows));
}

function meter(share) {
  const svg = shape("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" });
  svg.append(shape("rect", { class: "trough", x: 0, y: 0, width: 100, height: 8 }), shape("rect", { class: "meter", x: 0, y: 0, width: 100 * share, height: 8 }));
  return svg;
}

// After the node of this machine has ended, its page has no signs of life of the others.
function stateWords(peer) {
  const state = peer.state === "seated" ? (view.run.now.is_finished ? "finished" : "not known") : peer.state;
  return peer.role && state !== "finished" ? `${state}, ${peer.role}` : state;
}

function drawPeers(run) {
  const hidden = run.num_peers - run.peers.length;
  const credit = run.run.is_signed ? "Tokens credited by the signed reports in the ledger, at most what the plan assigned to that peer; reports of the newest rounds are in no plan yet." : "Tokens of the one node whose events these are.";
  at("peers-note").textContent = `${credit}${hidden > 0 ? ` ${plural(hidden, "more peer")} not shown.` : ""}`;
  const listed = view.areAllPeers ? run.peers : run.peers.slice(0, FIRST_PEERS);
  at("peers-all").hidden = listed.length === run.peers.length;
  at("peers-all").textContent = `show ${plural(run.peers.length - listed.length, "more peer")}`;
  table("peers", [["peer"], ["state", "left"], ["tokens"], ["share"], ["", "bar"], ["rounds"], ["last round"], ["samples/s"], ["trains"], ["uplink"], ["round trip"], ["reach", "left"], ["version", "left"]], listed.map((peer) => {
    const about = [peer.nickname, run.own !== null && run.own.peer === peer.peer ? "(this node)" : ""].filter(Boolean).join(" ");
    const line = row([
      [element("div", {}, element("a", { href: addressOf(peer.peer), "data-peer": peer.peer }, short(peer.peer)), about ? element("div", { class: "nickname" }, about) : null), "peer"], [stateWords(peer), `left ${peer.state === "left" ? "left-swarm" : peer.state}`], [count(peer.tokens)], [percent(peer.share)],
      [meter(peer.share), "bar"], [peer.rounds], [peer.last_round ?? "-"], [count(peer.samples_per_second)], [peer.instances.map((id) => `#${id}`).join(" ") || "-"],
      [linkRate(peer.upload_bytes_per_second || null)], [milliseconds(peer.round_trip_seconds)], [peer.reach || "-", "left"], [peer.version || "-", "left"],
    ]);
    line.firstChild.setAttribute("title", peer.peer);
    return line;
  }));
  at("tasks").replaceChildren(...run.tasks.map((claim) => element("li", { title: claim.peer }, `before round ${claim.round}: ${claim.words.join("; ")} - as ${short(claim.peer)} claims`)));
  at("bans").replaceChildren(...run.bans.map((ban) => element("li", { title: ban.peer }, `${short(ban.peer)}: ${ban.words}`)));
}

// One peer: from the table above, or by the address. It is asked for anew with every new document of the run.
async function drawPeer(run) {
  const wanted = view.peer;
  if (!wanted) { at("peer-card").hidden = true; view.shownPeer = null; return; }
  const reply = await ask(`api/peer?run=${view.place}&id=${encodeURIComponent(wanted)}`);
  if (wanted !== view.peer) return;
  const peer = reply.body || { peer: wanted, rounds: [], num_rounds: 0, events: [] };
  const known = run.peers.find((candidate) => candidate.peer === wanted);
  at("peer-title").textContent = `Peer ${short(wanted)}${known && known.nickname ? ` (${known.nickname})` : ""}`;
  at("peer-id").textContent = wanted;
  at("peer-facts").textContent = !reply.ok ? "This run has no such peer." : known ? [
    stateWords(known), `${count(known.tokens)} tokens (${percent(known.share)} of all) in ${plural(known.rounds, "round")}`,
    known.samples_per_second === null ? "" : `${count(known.samples_per_second)} samples/s`,
    uplink(peer), known.round_trip_seconds === null ? "" : `round trip ${milliseconds(known.round_trip_seconds)}`,
    known.reach ? `reach ${known.reach}` : "", known.version ? `version ${known.version}` : "", known.instances.length ? `hosts instance ${known.instances.join(", ")}` : "",
  ].filter(Boolean).join("; ") : "";
  at("peer-card").hidden = false;
  at("peer-events").replaceChildren(...peer.events.map((event) => element("li", {}, `round ${event.round}: ${event.words}`)));
  const newest = [...peer.rounds].reverse();
  const lines = view.isWholePeer ? newest : newest.slice(0, FIRST_LINES);
  at("peer-all").hidden = lines.length === newest.length;
  at("peer-all").textContent = `show ${plural(newest.length - lines.length, "older round")}`;
  table("peer-rounds", [["round"], ["instance"], ["samples"], ["planned"], ["training loss"], ["held out"], ["samples/s"], ["uplink"], ["", "left"]], lines.map((line) => row([
    [line.round], [line.instance], [line.samples ?? "-"], [line.planned], [loss(line.loss)], [loss(line.heldout)],
    [count(line.samples_per_second)], [linkRate(line.upload_bytes_per_second)], [line.words, "left quiet"],
  ])));
  const isNew = view.shownPeer === null || view.shownPeer.peer !== wanted;
  view.shownPeer = peer;
  drawPeerCharts();
  if (isNew) at("peer-card").scrollIntoView();
}

function uplink(peer) {
  const measured = peer.rounds.map((line) => line.upload_bytes_per_second).filter((rate) => rate !== null);
  return measured.length ? `uplink ${linkRate(measured[measured.length - 1])} in its last averages` : "";
}

function drawPeerCharts() {
  const peer = view.shownPeer;
  if (peer === null) return;
  const charts = [
    ["peer-loss", [["loss", "faint", "training"], ["heldout", "", "held out"]], loss],
    ["peer-speed", [["samples_per_second", "", "samples/s"]], count],
  ];
  for (const [id, fields, words] of charts) {
    const points = peer.rounds.filter((line) => fields.some(([field]) => line[field] !== null));
    const ys = points.flatMap((line) => fields.map(([field]) => line[field])).filter((value) => value !== null);
    if (!ys.length) { waiting(id, "no report of its work yet"); continue; }
    const chart = frame(at(id), {
      height: 200, left: 44, xs: points.map((line) => line.round), ys, isLogarithmic: false,
      xText: whole, yText: (tick) => (id === "peer-loss" ? tick.toFixed(2) : count(tick)), label: `${fields.map(([, , name]) => name).join(" and ")} of this peer`,
    });
    for (const instance of new Set(points.map((line) => line.instance))) {
      for (const [field, style] of fields) {
        const own = points.filter((line) => line.instance === instance && line[field] !== null);
        if (own.length) chart.svg.append(curve(own, (line) => [chart.x(line.round), chart.y(line[field])], `curve s${colour(instance)} ${style}`));
      }
    }
    readable(chart, at(id), at(`${id}-readout`), new Set(points.map((line) => line.round)), (place) => [
      `round ${place}: `, ...points.filter((line) => line.round === place).flatMap((line) => [
        element("b", { class: `f${colour(line.instance)}` }, `  #${line.instance} `), fields.map(([field, , name]) => `${name} ${words(line[field])}`).reverse().join(", "),
      ]),
    ]);
  }
}

function drawTraffic(run) {
  const traffic = run.traffic;
  const rows = [];
  for (const line of traffic.own || []) rows.push(row([[`this node, ${line.kind}`], [bytes(line.sent)], [bytes(line.received)]]));
  rows.push(row([["all peers, averaging *"], [bytes(traffic.swarm_averaging_bytes)], [bytes(traffic.swarm_averaging_bytes)]]));
  rows.push(row([["all peers, averaging per token *"], [bytes(traffic.swarm_bytes_per_token)], [""]]));
  table("traffic", [["what"], ["sent"], ["received"]], rows);
  at("traffic-note").textContent = "* computed from the contributors that the ledger names. The numbers of this node are measured.";
}

function drawOwn(run) {
  const own = run.own;
  at("own-card").hidden = own === null;
  if (own === null) return;
  const pairs = [
    ["peer", own.peer], ["device", own.device], ["running", duration(own.seconds)],
  ];
  at("own").replaceChildren(...pairs.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
  at("metrics").replaceChildren(...own.metrics.map((metric) => element("li", { title: metric.meaning }, metric.text)));
  at("troubles").replaceChildren(
    ...own.warnings.map((text) => element("li", { class: "silent" }, `now: ${text}`)),
    ...own.incidents.slice(0, 5).map((incident) => element("li", { class: "quiet" }, `round ${incident.round}: ${incident.message}`)));
}

function drawTexts(run) {
  const texts = run.own === null ? [] : run.own.texts;
  at("texts-card").hidden = !texts.length;
  const shown = view.areAllTexts ? texts : texts.slice(0, FIRST_TEXTS);
  at("texts-all").hidden = shown.length === texts.length;
  at("texts-all").textContent = `show ${plural(texts.length - shown.length, "earlier text")}`;
  at("texts").replaceChildren(...shown.flatMap((each) => [
    element("p", { class: "quiet" }, `round ${each.round}, instance ${each.instance}`),
    element("p", { class: "written" }, element("b", {}, each.prompt), each.text),
  ]));
}

// --- ledger

function drawLedger(run) {
  const hidden = run.num_plans - run.ledger.length;
  at("ledger-note").textContent = `${plural(run.num_plans, "plan")}${run.run.is_signed ? " of the signed ledger" : ""}${hidden > 0 ? `; the ${hidden} oldest are not shown` : ""}. Open one for its reasons.`;
  const lines = view.isWhole ? run.ledger : run.ledger.slice(0, FIRST_LINES);
  at("all").hidden = lines.length === run.ledger.length;
  at("all").textContent = `show ${plural(run.ledger.length - lines.length, "older plan")}`;
  at("ledger").replaceChildren(...lines.map((line) => {
    const tags = [
      ...line.forks.map((fork) => ["fork", `fork ${fork.source} -> ${fork.targets.join(", ")}`]),
      ...line.merges.map((merge) => ["merge", `merge ${merge.subject}`]),
      ...(line.joined.length ? [["", plural(line.joined.length, "newcomer")]] : []),
      ...(line.departed.length ? [["", `${line.departed.length} gone`]] : []),
      ...(line.is_last ? [["", "the last plan"]] : []),
    ];
    const votes = line.votes === null ? "" : `, ${plural(line.votes, "vote")}`;
    const body = element("details", { "data-round": line.round },
      element("summary", {}, `round ${line.round}, ${plural(line.peers, "peer")}${votes}`, ...tags.map(([kind, text]) => element("span", { class: `tag ${kind}` }, text))),
      element("ul", {},
        ...line.instances.map((item) => element("li", {}, `instance ${item.id}: ${item.requested} asked, ${item.effective} used, ${item.mode}, ${plural(item.hosts, "host")}. ${item.reason}`)),
        ...line.merges.map((merge) => element("li", {}, `merge ${merge.subject}, weights ${merge.weights.map((weight) => weight.toFixed(3)).join(" + ")}. ${merge.reason}`)),
        ...line.joined.map((peer) => element("li", {}, `joined: ${peer}`)),
        ...line.departed.map((peer) => element("li", {}, `departed: ${peer}`)),
        line.reason ? element("li", {}, line.reason) : null,
        element("li", { class: "quiet" }, `plan ${line.digest}`)));
    body.open = view.openRounds.has(line.round);
    body.addEventListener("toggle", () => { view.openRounds[body.open ? "add" : "delete"](line.round); writeAddress(); });
    return body;
  }));
}

// --- the whole page

function drawHead(run) {
  document.title = `${run.run.name}: AdLoCo run`;
  at("name").textContent = run.run.name;
  const size = run.run.parameters === null ? "" : `, ${count(run.run.parameters)} parameters`;
  at("identity").textContent = `run ${run.run.digest.slice(0, 16)}, ${run.run.mode}, ${plural(run.run.inner_steps, "step")} a round${size}${run.run.admission && `, admission ${run.run.admission}`}${run.run.protocol && `, ${run.run.protocol}`}`;
  const alive = run.num_alive;
  const isSeated = run.peers.some((peer) => peer.state === "seated");
  const isOver = run.now.is_finished || (run.now.is_last_agreed && !alive && !isSeated);
  const state = isOver ? "finished" : isSeated && !alive ? "this node has stopped" : run.now.is_last_agreed ? "the last plan is agreed" : run.now.is_paused ? "paused by a signer" : alive ? "training" : "no peer answers";
  const position = run.run.samples === null ? `of ${run.run.rounds}` : `(${run.now.samples_given.toLocaleString("en")} of ${run.run.samples.toLocaleString("en")} samples assigned)`;
  at("state").textContent = `round ${run.now.round} ${position}, ${state}`;
  at("state").classList.remove("lost");
  at("orders").textContent = run.now.orders;
  at("orders").hidden = !run.now.orders;
  at("bar").style.width = `${isOver ? 100 : 100 * run.now.fraction}%`;
  at("bar").parentElement.setAttribute("aria-valuenow", isOver ? 100 : Math.round(100 * run.now.fraction));
  const live = run.instances.filter((instance) => instance.is_alive).length;
  const tiles = [
    ["held-out loss", loss(run.now.heldout_loss), "nats per token"], ["credited tokens", count(run.now.tokens), `${count(run.now.samples)} samples`],
    ["peers", String(isOver || isSeated ? run.num_peers : alive), isOver ? "took part" : isSeated ? "known" : `alive of ${run.num_peers}`], ["instances", String(live), `of ${run.instances.length} so far`],
    ...(run.own === null ? [] : [  // only a node on this machine has a clock
      isOver ? ["running time", duration(run.now.seconds), "of this node"] : ["time left", duration(run.now.seconds_left), "estimated"],
      ["speed, all peers", count(run.now.tokens_per_second), isOver ? "tokens/s, last rounds" : "tokens/s"],
    ]),
    ["averaging, all peers", bytes(run.traffic.swarm_averaging_bytes), "computed"],
  ];
  at("tiles").replaceChildren(...tiles.map(([name, value, unit]) => element("div", {}, element("dt", {}, name), element("dd", {}, value, " ", element("small", {}, unit)))));
  at("source").textContent = run.source;
  at("join").hidden = !run.now.join || isOver;
  at("join-command").textContent = run.now.join;
  const hasModel = run.own !== null && run.own.saved_round !== null && run.own.export;
  at("model").hidden = !hasModel;
  if (!hasModel) return;
  at("model-command").textContent = run.own.export;
  at("model-note").textContent = `Writes the newest model of this machine, after ${plural(run.own.saved_round, "round")}, as a directory that transformers loads.`;
}

function drawCharts() {
  const run = view.run;
  if (run === null) return;
  if (view.isDragging) return;
  drawLoss(run);
  drawCompared(run);
  drawBatch(run);
  drawFamily(run);
  drawSpeed(run);
  drawComputing(run);
  drawDurations(run);
  drawPeerCharts();
}

function draw(run) {
  view.run = run;
  document.body.classList.remove("waiting");
  keepingKeyboard(() => {
    drawHead(run);
    drawCharts();
    listInstances(run);
    drawPeers(run);
    drawTraffic(run);
    drawOwn(run);
    drawTexts(run);
    drawLedger(run);
    showChoice();
  });
  letScroll();
  return drawPeer(run);
}

// Every document replaces links, plans and marks: the keyboard goes on at the new one.
function keepingKeyboard(change) {
  const held = document.activeElement;
  const name = held === null ? undefined : ["peer", "place", "decision", "round"].find((key) => (held.closest("[data-round]") || held).dataset[key] !== undefined);
  const value = name && (held.closest("[data-round]") || held).dataset[name];
  change();
  if (name === undefined || document.contains(held)) return;
  const again = document.querySelector(`[data-${name}="${CSS.escape(value)}"]${name === "round" ? " > summary" : ""}`);
  if (again !== null) again.focus({ preventScroll: true });
}

// A table that is wider than its card scrolls by the keyboard, too.
function letScroll() {
  for (const box of document.querySelectorAll(".scroll")) {
    if (box.scrollWidth > box.clientWidth) box.setAttribute("tabindex", "0");
    else box.removeAttribute("tabindex");
  }
}

// Another address: a link on the page, the browser's way back, or a hand.
async function follow() {
  const place = view.place;
  readAddress();
  view.isWholePeer = false;
  if (place !== view.place) await refresh();
  else if (view.run !== null) await draw(view.run);
}

class NoReply extends Error {}

// Separate from drawing, whose faults are not those of the connection. `body` is null where the server refuses.
async function ask(address) {
  try {
    const reply = await fetch(address);
    return { ok: reply.ok, status: reply.status, body: reply.ok ? await reply.json() : null };
  } catch (error) {
    throw new NoReply(error.message);
  }
}

async function refresh() {
  const place = view.place;
  const reply = await ask(`api/run?run=${place}`);
  if (place !== view.place) return;  // another run was chosen meanwhile
  if (reply.status === 404 && place > 0) {  // an address that was kept while there were more runs
    view.place = 0;
    writeAddress();
    return refresh();
  }
  if (!reply.ok) throw new NoReply(`status ${reply.status}`);
  const run = reply.body;
  if (run.run && place === view.place) await draw(run);
}

// The loss chart as a picture, in the colours that are shown: a picture has no style sheet, so every shape takes its own along.
async function savePicture() {
  const shown = at("loss").querySelector("svg");
  if (shown === null) return;
  const [width, height] = [shown.clientWidth, shown.clientHeight];
  const copy = shown.cloneNode(true);
  const shapes = [...shown.querySelectorAll("*")];
  [...copy.querySelectorAll("*")].forEach((drawn, index) => {
    const style = getComputedStyle(shapes[index]);
    for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family", "visibility"]) {
      drawn.setAttribute(name, style.getPropertyValue(name));
    }
  });
  for (const [name, value] of Object.entries({ xmlns: SVG, width, height })) copy.setAttribute(name, value);
  const picture = new Image();
  picture.src = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
  await picture.decode();
  const canvas = element("canvas", { width: 2 * width, height: 2 * height });
  const pen = canvas.getContext("2d");
  pen.fillStyle = getComputedStyle(document.querySelector(".card")).backgroundColor;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(picture, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(picture.src);
  const file = await new Promise((done) => canvas.toBlob(done, "image/png"));
  const link = element("a", { href: URL.createObjectURL(file), download: "loss.png" });
  link.click();
  URL.revokeObjectURL(link.href);
}

function lost(error) {
  const isDrawing = error instanceof Error && !(error instanceof NoReply);
  if (isDrawing) console.error(error);
  at("state").textContent = isDrawing
    ? "this page cannot draw the run; the browser's console has the error" : "no connection to the dashboard; trying again";
  at("state").classList.add("lost");
}

function start() {
  readAddress();
  showChoice();
  for (const button of document.querySelectorAll("[data-axis]")) {
    button.addEventListener("click", () => { view.axis = button.dataset.axis; zoom(null); });
  }
  for (const [id, name] of [["log", "isLog"], ["smooth", "isSmooth"]]) {
    at(id).addEventListener("click", () => { view[name] = !view[name]; writeAddress(); drawCharts(); });
  }
  at("whole").addEventListener("click", () => zoom(null));
  at("picture").addEventListener("click", savePicture);
  at("peers-all").addEventListener("click", () => { view.areAllPeers = true; drawPeers(view.run); showChoice(); });
  at("all").addEventListener("click", () => { view.isWhole = true; drawLedger(view.run); });
  at("texts-all").addEventListener("click", () => { view.areAllTexts = true; drawTexts(view.run); });
  at("peer-all").addEventListener("click", () => { view.isWholePeer = true; drawPeer(view.run).catch(lost); });
  window.addEventListener("hashchange", () => follow().catch(lost));
  let width = 0;
  new ResizeObserver(() => {
    if (document.body.clientWidth !== width) { width = document.body.clientWidth; drawCharts(); letScroll(); }
  }).observe(document.body);
  listen();
  refresh().catch(lost);
}

// A browser opens a stream that broke off anew by itself, but not one that the server refused.
function listen() {
  const news = new EventSource("api/events");
  news.addEventListener("news", () => refresh().catch(lost));
  news.addEventListener("error", () => {
    if (news.readyState !== EventSource.CLOSED) return lost();
    setTimeout(() => { refresh().catch(lost); listen(); }, 1000 * RETRY_SECONDS);
  });
}

start();
