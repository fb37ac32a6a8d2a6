"use strict";
// The page of a moon server: sends images to predict and shows the answers. Foreign text is set as textContent only.
const $ = id => document.getElementById(id);
const MAX_CARDS = 200, AT_ONCE = 4, TRIES = 4;
const svg = (name, attributes, text) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
};
const sleep = seconds => new Promise(done => setTimeout(done, 1000 * seconds));
let model = null, token = sessionStorage.getItem("moon-token") || "", running = 0;
const waiting = [];

const ask = (path, options = {}) =>
  fetch(path, {...options, headers: token ? {Authorization: "Bearer " + token} : {}, credentials: "omit"});

async function start() {
  try {
    const found = await ask("model");
    if (found.status === 401) return needToken(token ? "This token is not the right one." : "");
    if (!found.ok) throw new Error("the server answered " + found.status);
    model = await found.json();
    $("token-form").hidden = true;
    describe();
    next();
  } catch (error) {
    $("about").textContent = "The server cannot be reached (" + error.message + "). Reload the page to try again.";
  }
}

function needToken(reason) {
  $("about").textContent = "Enter the token to use this server.";
  $("token-form").hidden = false;
  $("token-error").textContent = reason;
  $("token").focus();
}

function describe() {
  const names = model.classes, shown = names.slice(0, 12).join(", ") + (names.length > 12 ? ", …" : "");
  $("about").textContent = `This network knows ${names.length} classes: ${shown}. Its threshold accepts ` +
    `${Math.round(1000 * model.threshold.accept) / 10}% of known images. ` +
    (model.rejection?.verdict ? `It ${model.rejection.verdict}.` : "Its file does not say how many other images it rejects.");
  $("about").classList.toggle("bad", model.rejection?.is_reliable === false);
  const {channels, rows, columns} = model.input;
  $("facts").textContent = `Detector ${model.detector}, input ${columns}×${rows} ${channels === 1 ? "grey" : "colour"}, ` +
    `${(model.bytes / 1000).toLocaleString("en", {maximumFractionDigits: 0})} kB, calibrated on ` +
    `${model.calibration.images.toLocaleString("en")} images, SHA-256 ${model.sha256.slice(0, 16)}…`;
}

function add(files) {
  const images = [...files].filter(file => file instanceof Blob);
  const cards = images.map(newCard);  // in the order of the images, before earlier ones
  $("results").prepend(...cards);
  while ($("results").children.length > MAX_CARDS) $("results").lastElementChild.remove();
  images.forEach((file, i) => waiting.push({file, card: cards[i]}));
  $("clear").hidden = !$("results").children.length;
  next();
}

function newCard(file) {
  const card = $("card").content.firstElementChild.cloneNode(true), image = card.querySelector("img");
  const name = file.name || "image";
  card.className = "waiting";
  card.querySelector("figcaption").textContent = card.querySelector("figcaption").title = name;
  card.querySelector(".verdict").textContent = "…";
  image.alt = name;
  image.onload = () => { URL.revokeObjectURL(image.src); image.className = image.naturalWidth <= 96 ? "small" : ""; };
  image.onerror = () => {
    const blank = document.createElement("div");
    blank.className = "blank";
    blank.textContent = "no preview";
    image.replaceWith(blank);
  };
  image.src = URL.createObjectURL(file);
  return card;
}

function next() {
  while (model && running < AT_ONCE && waiting.length) {
    running++;
    const {file, card} = waiting.shift();
    predict(file).then(answer => show(card, answer), error => fail(card, error.message))
      .finally(() => { running--; next(); });
  }
}

async function predict(file) {
  if (file.size > model.limits.body_bytes) throw new Error(`larger than ${model.limits.body_bytes.toLocaleString("en")} bytes`);
  for (let tries = 1; ; tries++) {
    const form = new FormData();
    form.append("image", file, file.name || "image");
    let reply;
    try { reply = await ask("predict", {method: "POST", body: form}); } catch { throw new Error("the server cannot be reached"); }
    if ((reply.status === 429 || reply.status === 503) && tries < TRIES) {
      await sleep(Number(reply.headers.get("Retry-After")) || 1);
      continue;
    }
    const body = await reply.json();
    if (reply.status === 401) { needToken("This token is not the right one."); throw new Error("a token is needed"); }
    if ("drift_alarm" in body) $("drift").hidden = !body.drift_alarm;
    if (!reply.ok) throw new Error(body.answers?.[0].error || body.error);
    return body.answers[0];
  }
}

const percent = value => value === null ? "–" : (100 * value).toFixed(1) + "%";
const small = value => value === null ? "–" : value < 0.001 ? value.toExponential(1) : value.toFixed(3);

function show(card, answer) {
  card.className = answer.is_known ? "known" : "unknown";
  card.querySelector(".verdict").textContent = answer.verdict;
  card.querySelector(".likely").textContent = answer.is_known ? "" : "most like " + answer.class;
  card.querySelector(".probability").textContent = percent(answer.probability);
  card.querySelector(".p-value").textContent = small(answer.p_value);
  draw(card.querySelector("svg.scores"), answer);
  $("status").textContent = `${card.querySelector("figcaption").title}: ${answer.verdict}, probability ` +
    `${percent(answer.probability)}, p-value ${small(answer.p_value)}`;
}

function fail(card, reason) {
  card.className = "failed";
  card.querySelector(".verdict").textContent = reason;
  $("status").textContent = `${card.querySelector("figcaption").title}: ${reason}`;
}

function draw(chart, answer) {
  const bins = model.calibration.histogram;
  chart.setAttribute("aria-label", `Score ${answer.score === null ? "not a number" : answer.score.toPrecision(3)}`);
  if (!bins || answer.score === null) return chart.remove();
  const low = bins.edges[0], high = bins.edges.at(-1), most = Math.max(...bins.counts), floor = 50, left = 10, width = 220;
  const pad = 0.12 * (high - low), from = low - pad, to = high + pad;
  const x = score => left + width * Math.min(1, Math.max(0, (score - from) / (to - from)));
  bins.counts.forEach((count, i) => {
    const height = 38 * count / most, at = x(bins.edges[i]);
    chart.append(svg("rect", {x: at, y: floor - height, width: Math.max(.5, x(bins.edges[i + 1]) - at - .6), height}));
  });
  chart.append(svg("line", {class: "axis", x1: left, x2: left + width, y1: floor, y2: floor}));
  const limits = model.threshold.scores, limit = limits.length === 1 ? limits[0] : limits[model.classes.indexOf(answer.class)];
  if (limit !== null) chart.append(svg("line", {class: "threshold", x1: x(limit), x2: x(limit), y1: 8, y2: floor}));
  const at = x(answer.score), outside = answer.score < from ? "← " : "", beyond = answer.score > to ? " →" : "";
  chart.append(svg("line", {class: "mark", x1: at, x2: at, y1: 8, y2: floor}));
  chart.append(svg("path", {class: "head", d: `M${at - 4.5} 3h9l-4.5 7z`}));
  chart.append(svg("text", {x: left, y: 61}, outside + "less known"));
  chart.append(svg("text", {x: left + width, y: 61, "text-anchor": "end"}, "more known" + beyond));
}

// Choosing, dropping and pasting
$("files").addEventListener("change", event => { add(event.target.files); event.target.value = ""; });
for (const kind of ["dragenter", "dragover"]) {
  addEventListener(kind, event => { event.preventDefault(); $("drop").classList.add("over"); });
}
for (const kind of ["dragleave", "drop"]) {
  addEventListener(kind, event => {
    event.preventDefault();
    if (kind === "drop" || !event.relatedTarget) $("drop").classList.remove("over");
    if (kind === "drop") add(event.dataTransfer.files);
  });
}
addEventListener("paste", event => { if (event.clipboardData?.files.length) add(event.clipboardData.files); });
$("clear").addEventListener("click", () => {
  waiting.length = 0;
  $("results").replaceChildren();
  $("status").textContent = "";
  $("clear").hidden = true;
});
$("token-form").addEventListener("submit", event => {
  event.preventDefault();
  token = $("token").value.trim();
  sessionStorage.setItem("moon-token", token);
  start();
});

// The camera is asked for on a click only, and switched off when the dialog closes.
let stream = null, pictures = 0;
$("camera").addEventListener("click", async () => {
  try {
    stream = await navigator.mediaDevices.getUserMedia({video: {facingMode: "environment"}});
    $("video").srcObject = stream;
    await $("video").play();
    $("viewer").showModal();
  } catch (error) {
    $("status").textContent = "The camera cannot be used: " + (navigator.mediaDevices ? error.message : "browsers allow it " +
      "on https and localhost only") + ".";
  }
});
$("shoot").addEventListener("click", () => {
  const canvas = document.createElement("canvas"), video = $("video");
  canvas.width = video.videoWidth;
  canvas.height = video.videoHeight;
  canvas.getContext("2d").drawImage(video, 0, 0);
  canvas.toBlob(blob => add([new File([blob], `camera ${++pictures}.png`, {type: "image/png"})]), "image/png");
  $("viewer").close();
});
$("close").addEventListener("click", () => $("viewer").close());
$("viewer").addEventListener("close", () => {
  for (const track of stream?.getTracks() ?? []) track.stop();
  $("video").srcObject = stream = null;
});
start();
