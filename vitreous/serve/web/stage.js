// One image on the page: what the model sees of it, its predictions, and a map over its patches.

import * as api from "./api.js";
import { share } from "./card.js";
import { drawFrame, drawGrid, drawMap } from "./heatmap.js";

const LONGEST = 672;
const MOST_VALUES = 8_000_000; // of a layer that is fetched whole; above that, rows are fetched one by one

export class Stage {
  constructor(name, model, events) {
    const copy = document.getElementById("stage-template").content.cloneNode(true);
    this.element = copy.querySelector(".stage");
    this.canvas = copy.querySelector("canvas");
    this.element.classList.toggle("plain", !model.attention);
    this.status = copy.querySelector(".status");
    this.list = copy.querySelector(".predictions");
    this.model = model;
    this.events = events;
    this.name = name;
    this.image = null; // the encoded file, as the server gets it
    this.seen = null; // the pixels that the model sees
    this.cache = new Map();
    this.turn = 0;
    this.label = null; // the class whose map is shown
    copy.querySelector("h2").textContent = `Image ${name}`;
    const [height, width] = model.preprocessing.image_size;
    const scale = LONGEST / Math.max(height, width);
    [this.canvas.width, this.canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
    this.canvas.setAttribute("aria-label", `Image ${name}: nothing yet`);
    this.#listen(copy.querySelector("input"));
    document.getElementById("stages").append(copy);
    this.draw(null);
  }

  #listen(input) {
    input.addEventListener("change", () => {
      if (input.files[0]) this.show(input.files[0]);
      input.value = "";
    });
    this.element.addEventListener("pointerdown", () => this.events.activate(this));
    this.element.addEventListener("focusin", () => this.events.activate(this));
    if (!this.model.attention) return;
    this.canvas.addEventListener("pointermove", (event) => this.events.hover(this.#patchAt(event)));
    this.canvas.addEventListener("pointerleave", () => this.events.hover(null));
    this.canvas.addEventListener("click", (event) => this.events.choose(this.#patchAt(event)));
    this.canvas.addEventListener("keydown", (event) => this.events.key(event));
  }

  #patchAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const [rows, columns] = this.model.attention.grid;
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    return Math.min(rows - 1, Math.max(0, row)) * columns + Math.min(columns - 1, Math.max(0, column));
  }

  /** Take a new image: ask for its predictions and for what the model sees. */
  async show(image) {
    const turn = ++this.turn;
    this.status.textContent = "Working…";
    this.events.problem(null);
    try {
      api.checkSize(image, this.model.limits.bytes);
      const [prediction, seen] = await Promise.all([
        this.model.labels.length ? api.predict(image) : { label: null, top: [] },
        api.preprocess(image),
      ]);
      const bitmap = await createImageBitmap(seen);
      if (turn !== this.turn) return;
      [this.image, this.seen] = [image, bitmap];
      this.cache.clear();
      this.label = prediction.top[0]?.label ?? null;
      this.status.textContent = "";
      this.#list(prediction);
      this.element.dataset.shown = turn;
      this.events.changed();
    } catch (error) {
      if (turn !== this.turn) return;
      this.status.textContent = this.image ? "The previous image stays." : "";
      this.events.problem(error);
    }
  }

  #list(prediction) {
    const rows = prediction.top.map(({ label, probability }) => {
      const item = document.createElement("li");
      const row = part("button", "row", "");
      row.type = "button";
      row.disabled = !this.model.attention;
      row.dataset.label = label;
      row.addEventListener("click", () => this.events.label(this, label));
      const text = `${(100 * probability).toFixed(1)}\u00a0%`;
      row.append(part("span", "name", label), part("span", "share", text));
      const track = part("div", "track", "");
      const bar = part("div", "bar", "");
      bar.style.width = `${100 * probability}%`;
      track.append(bar);
      row.append(track);
      item.append(row);
      return item;
    });
    this.list.replaceChildren(...rows);
    const labels = prediction.labels?.join(", ") || prediction.label;
    if (!this.model.labels.length) {
      this.status.textContent = "This model has no classes.";
    } else if (prediction.label === null) {
      this.status.textContent = this.model.multilabel
        ? "No label reaches its threshold."
        : `No label: the best is below the model's threshold of ${share(this.model.abstain)}.`;
    } else if (this.model.multilabel) {
      this.status.textContent = `Labels: ${labels}`;
    }
    const label = labels ?? "no label";
    this.canvas.setAttribute("aria-label", `Image ${this.name}: ${label}. Arrow keys move the chosen patch.`);
  }

  /** Return the map of every head (heads × patches) for a question, from the cache if it is there. */
  async maps(kind, layer, query) {
    const { heads, grid, prefix } = this.model.attention;
    const patches = grid[0] * grid[1];
    const tokens = prefix + patches;
    const whole = (kind === "rollout" ? 1 : heads) * tokens * tokens <= MOST_VALUES;
    const key = `${kind} ${layer}${whole ? "" : ` ${query}`}`;
    if (!this.cache.has(key)) {
      const asked = whole
        ? api.allRows(this.image, kind, layer)
        : api.oneRow(this.image, kind, layer, query);
      asked.catch(() => this.cache.delete(key));
      if (this.cache.size > 24) this.cache.delete(this.cache.keys().next().value);
      this.cache.set(key, asked);
    }
    const found = await this.cache.get(key);
    if (!whole) return found;
    return Array.from({ length: found.shape[0] }, (_, head) => rowOf(found, head, query, prefix, patches));
  }

  /** Return what supports the chosen class, from the cache if it is there. */
  relevance() {
    const key = `label ${this.label}`;
    if (!this.cache.has(key)) {
      const asked = api.relevance(this.image, this.model.labels.indexOf(this.label));
      asked.catch(() => this.cache.delete(key));
      this.cache.set(key, asked);
    }
    return this.cache.get(key);
  }

  /** Mark the class whose map is shown, if one is. */
  mark(shown) {
    for (const row of this.list.querySelectorAll(".row")) {
      row.setAttribute("aria-pressed", String(shown && row.dataset.label === this.label));
    }
  }

  /** Draw the image, and a map over it if there is one; return the map's largest value. */
  draw(values, { frame = null, low = 0 } = {}) {
    const context = this.canvas.getContext("2d");
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    const grid = this.model.attention?.grid;
    let most = null;
    if (this.seen) {
      context.imageSmoothingEnabled = this.seen.width > 64;
      context.drawImage(this.seen, 0, 0, this.canvas.width, this.canvas.height);
      if (values) most = drawMap(this.canvas, values, grid, { over: true, low });
    }
    if (grid) drawGrid(this.canvas, grid);
    if (grid && this.seen && frame !== null) drawFrame(this.canvas, grid, frame);
    return most;
  }
}

function rowOf(found, head, query, prefix, patches) {
  const tokens = found.shape[2];
  const row = (token) => {
    const start = (head * tokens + token) * tokens + prefix;
    return found.data.subarray(start, start + patches);
  };
  if (query === "class") return row(0);
  if (query !== "mean") return row(prefix + query);
  const sum = new Float32Array(patches);
  for (let token = prefix; token < tokens; token++) row(token).forEach((value, i) => { sum[i] += value / patches; });
  return sum;
}

function part(kind, name, text) {
  const element = document.createElement(kind);
  element.className = name;
  element.textContent = text; // never markup: names of classes come from files
  return element;
}
