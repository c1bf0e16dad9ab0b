// The explorer: the state that both images share, and what happens on user input.

import * as api from "./api.js";
import { fillCard } from "./card.js";
import { drawFrame, drawMap } from "./heatmap.js";
import { Stage } from "./stage.js";

const $ = (id) => document.getElementById(id);
const state = { model: null, stages: [], active: null, patch: 0, hovered: null, positions: null, drawing: 0, examples: [] };

function problem(error) {
  $("alert").hidden = !error;
  $("alert").textContent = error ? error.message : "";
  if (error?.status === 401) {
    $("token-form").hidden = false;
    $("model-name").textContent = "";
    $("token").select();
  }
}

const view = () => document.querySelector('input[name="view"]:checked').value;
const place = (patch) => {
  const columns = state.model.attention.grid[1];
  return `row ${Math.floor(patch / columns) + 1}, column ${(patch % columns) + 1}`;
};

function question() {
  const chosen = view();
  const pooled = state.model.attention.class_token ? "class" : "mean";
  if (chosen === "label") return { kind: "label", query: null, frame: state.hovered };
  if (chosen === "patch") return { kind: "attention", query: state.hovered ?? state.patch, frame: state.hovered ?? state.patch };
  return { kind: chosen === "rollout" ? "rollout" : "attention", query: pooled, frame: state.hovered };
}

/** Redraw everything for the current state; the last call wins. */
async function draw() {
  if (!state.model?.attention) return state.stages.forEach((stage) => stage.draw(null));
  const turn = ++state.drawing;
  const [layer, head] = [Number($("layer").value), Number($("head").value)];
  const { kind, query, frame } = question();
  $("layer-value").textContent = `${layer} of ${state.model.attention.layers}`;
  $("head-value").textContent = kind !== "attention" ? "all" : head ? `${head} of ${state.model.attention.heads}` : "mean";
  $("head").disabled = $("mosaic-on").disabled = kind !== "attention";
  $("layer").disabled = kind === "label";
  if (kind === "label") $("layer-value").textContent = "all";
  $("label-name").textContent = state.active?.label ?? "the answer";
  drawPositions();
  for (const stage of state.stages) {
    stage.mark(kind === "label");
    if (!stage.image || view() === "image") {
      stage.draw(null, { frame });
      continue;
    }
    try {
      const heads = kind === "label" ? [await stage.relevance()] : await stage.maps(kind, layer - 1, query);
      if (turn !== state.drawing) return;
      const values = kind !== "attention" ? heads[0] : head ? heads[head - 1] : mean(heads);
      // Every patch supports a class a little: start the scale at the least, to show where it is more
      const low = kind === "label" ? Math.min(...values) : 0;
      const most = stage.draw(values, { frame, low });
      if (stage === state.active) tell(kind, query, values, low, most);
      if (stage === state.active) drawMosaic(kind, heads, head);
    } catch (error) {
      if (turn === state.drawing) problem(error);
    }
  }
}

function mean(heads) {
  const sum = new Float32Array(heads[0].length);
  for (const head of heads) head.forEach((value, i) => { sum[i] += value / heads.length; });
  return sum;
}

const percent = (share) => `${(100 * share).toFixed(1)}\u00a0%`;

function tell(kind, query, values, low, most) {
  const best = values.indexOf(Math.max(...values));
  $("legend-least").textContent = low ? percent(low) : "0";
  $("legend-most").textContent = percent(most);
  if (kind === "label") {
    $("readout").textContent = `“${state.active.label}” is supported most by ${place(best)}: ${percent(values[best])} of all support.`;
    return;
  }
  const from = query === "class" ? "The class token" : query === "mean" ? "The mean of the patches" : `Patch ${place(query)}`;
  const verb = kind === "rollout" ? "draws most, through all layers up to this one, from" : "attends most to";
  $("readout").textContent = `${from} ${verb} ${place(best)}: ${percent(values[best])}.`;
}

function drawMosaic(kind, heads, chosen) {
  const box = $("mosaic");
  box.hidden = !$("mosaic-on").checked || kind !== "attention" || view() === "image";
  if (box.hidden) return;
  if (box.children.length !== heads.length) {
    const [rows, columns] = state.model.attention.grid;
    const scale = 96 / Math.max(rows, columns);
    box.replaceChildren(...heads.map((_, index) => {
      const button = document.createElement("button");
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [Math.round(columns * scale), Math.round(rows * scale)];
      const name = document.createElement("span");
      name.textContent = `Head ${index + 1}`;
      button.append(canvas, name);
      button.type = "button";
      button.addEventListener("click", () => {
        $("head").value = Number($("head").value) === index + 1 ? 0 : index + 1;
        draw();
      });
      return button;
    }));
  }
  heads.forEach((values, index) => {
    drawMap(box.children[index].querySelector("canvas"), values, state.model.attention.grid);
    box.children[index].setAttribute("aria-pressed", String(chosen === index + 1));
  });
}

function drawPositions() {
  if (!state.positions) return;
  const patch = state.hovered ?? state.patch;
  const { shape, data } = state.positions;
  const values = data.subarray(patch * shape[1], (patch + 1) * shape[1]);
  const others = values.filter((_, i) => i !== patch);
  const [low, high] = [Math.min(...others), Math.max(...others)];
  const canvas = $("position-map");
  drawMap(canvas, values, state.model.attention.grid, { low, high: Math.max(high, low + 1e-6) });
  drawFrame(canvas, state.model.attention.grid, patch);
  $("position-text").textContent = `How alike the position of ${place(patch)} is to the others: ${low.toFixed(2)} to ${high.toFixed(2)} by cosine.`;
}

function choose(patch) {
  state.patch = patch;
  document.querySelector('input[name="view"][value="patch"]').checked = true;
  draw();
}

function key(event) {
  const [rows, columns] = state.model.attention.grid;
  let [row, column] = [Math.floor(state.patch / columns), state.patch % columns];
  const moves = {
    ArrowUp: () => { row -= 1; }, ArrowDown: () => { row += 1; },
    ArrowLeft: () => { column -= 1; }, ArrowRight: () => { column += 1; },
    Home: () => { column = 0; }, End: () => { column = columns - 1; },
    Enter: () => {}, " ": () => {},
  };
  if (event.ctrlKey || event.metaKey || event.altKey || !moves[event.key]) return;
  event.preventDefault();
  moves[event.key]();
  state.hovered = null;
  choose(Math.min(rows - 1, Math.max(0, row)) * columns + Math.min(columns - 1, Math.max(0, column)));
}

const events = {
  problem,
  choose,
  key,
  changed: draw,
  label(stage, label) {
    stage.label = label;
    events.activate(stage);
    document.querySelector('input[name="view"][value="label"]').checked = true;
    draw();
  },
  hover(patch) {
    if (patch === state.hovered) return;
    state.hovered = patch;
    draw();
  },
  activate(stage) {
    if (stage === state.active) return;
    state.active = stage;
    state.stages.forEach((each) => each.element.classList.toggle("active", each === stage));
    draw();
  },
};

function compare() {
  const on = state.stages.length === 1;
  if (on) state.stages.push(new Stage("B", state.model, events));
  else state.stages.pop().element.remove();
  $("compare").setAttribute("aria-pressed", String(on));
  $("stages").classList.toggle("two", on);
  events.activate(state.stages.at(-1));
  if (on && state.examples.length) state.active.show(state.examples.at(1) ?? state.examples[0]);
}

// Images come from files, the clipboard, a drop, the examples and the camera.

function stageAt(event) {
  return state.stages.find((stage) => stage.element.contains(event.target)) ?? state.active;
}

function listenForImages() {
  const marked = (stage) => state.stages.forEach((each) => each.element.classList.toggle("dropping", each === stage));
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    marked(stageAt(event));
  });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) marked(null); });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    marked(null);
    const file = event.dataTransfer?.files[0];
    if (file) stageAt(event)?.show(file);
    else problem(new Error("That was not a file: drop an image file."));
  });
  document.addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])][0];
    if (file) state.active?.show(file);
  });
}

async function listExamples() {
  const names = await api.getExamples();
  state.examples = await Promise.all(names.map(api.getExample));
  const buttons = names.map((name, number) => {
    const image = state.examples[number];
    const button = document.createElement("button");
    const thumbnail = document.createElement("img");
    thumbnail.src = URL.createObjectURL(image);
    thumbnail.alt = name.replace(/\.\w+$/, "").replace(/^\d+-/, "").replace("-", " ");
    if (name.endsWith(".png")) thumbnail.className = "pixelated"; // a few pixels each
    button.type = "button";
    button.title = thumbnail.alt;
    button.append(thumbnail);
    button.addEventListener("click", () => state.active.show(image));
    return button;
  });
  $("examples").replaceChildren(...buttons);
}

async function openCamera() {
  try {
    const stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    $("video").srcObject = stream;
    $("camera-panel").hidden = false;
    $("shoot").focus();
  } catch {
    problem(new Error("No camera: there is none, access was not allowed, or this page is not on localhost or https."));
  }
}

function closeCamera() {
  $("video").srcObject?.getTracks().forEach((track) => track.stop());
  $("video").srcObject = null;
  $("camera-panel").hidden = true;
  $("camera").focus();
}

function shoot() {
  const video = $("video");
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
  canvas.getContext("2d").drawImage(video, 0, 0);
  canvas.toBlob((image) => { if (image) state.active.show(image); }, "image/png");
  closeCamera();
}

function setUpAttention(attention) {
  $("attention").hidden = !attention;
  if (!attention) return;
  $("layer").max = $("layer").value = attention.layers;
  $("head").max = attention.heads;
  if (!attention.class_token) $("class-name").textContent = "where the patches look on average";
  const [rows, columns] = attention.grid;
  state.patch = Math.floor(rows / 2) * columns + Math.floor(columns / 2);
  const scale = 128 / Math.max(rows, columns);
  [$("position-map").width, $("position-map").height] = [Math.round(columns * scale), Math.round(rows * scale)];
  for (const control of ["layer", "head", "mosaic-on"]) $(control).addEventListener("input", draw);
  document.querySelectorAll('input[name="view"]').forEach((each) => each.addEventListener("change", draw));
}

async function begin() {
  const model = await api.getModel();
  state.model = model;
  $("model-name").textContent = `${model.name} · ${model.labels.length} classes`;
  document.title = `${model.name} · vitreous explorer`;
  document.querySelector("main").hidden = false;
  fillCard(model);
  setUpAttention(model.attention);
  $("view-label").hidden = !model.labels.length;
  state.stages = [new Stage("A", model, events)];
  events.activate(state.stages[0]);
  if (model.attention && model.attention.positions !== "none") {
    state.positions = await api.getPositions();
    $("positions").hidden = false;
  }
  await listExamples();
  $("compare").addEventListener("click", compare);
  $("camera").addEventListener("click", openCamera);
  $("shoot").addEventListener("click", shoot);
  $("camera-off").addEventListener("click", closeCamera);
  listenForImages();
  state.active.status.textContent = "The model is warming up…";
  await api.untilReady();
  state.active.status.textContent = "";
  if (state.examples.length && !state.active.turn) await state.active.show(state.examples[0]);
  else await draw();
  document.body.dataset.ready = "yes";
}

$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  api.useToken($("token").value);
  $("token-form").hidden = true;
  problem(null);
  begin().catch(problem);
});

begin().catch(problem);
