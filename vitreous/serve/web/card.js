// The model's card: everything is inserted as text.

const whole = new Intl.NumberFormat("en");
const NAMES = {
  model: "Model", epochs: "Epochs", steps: "Steps", batch_size: "Batch size", lr: "Learning rate", optimizer: "Optimizer",
  seed: "Seed", objective: "Task", name: "Name", description: "Description", licence: "Licence", license: "Licence", step: "Step",
  val: "Validation", test: "Test", train: "Training", accuracy: "Accuracy", top1: "Accuracy", top5: "Top-5 accuracy",
  mean_per_class_accuracy: "Mean over classes", loss: "Loss", ece: "Calibration error", count: "Images", knn: "Nearest neighbours",
};
const SHARES = new Set(["accuracy", "top1", "top5", "mean_per_class_accuracy", "ece", "knn"]);
const KINDS = { transformer: "Vision Transformer", hybrid: "hybrid: ResNet and transformer", resnet: "ResNet" };
const RESIZES = { cover: "shorter side to size, then the centre", pad: "whole, with padding", exact: "stretched", none: "not at all" };

/** A name that people read, for a key that programs wrote. */
export function named(key) {
  const words = String(key).replaceAll("_", " ");
  return NAMES[key] ?? words.charAt(0).toUpperCase() + words.slice(1);
}

export function fillCard(model) {
  const { attention, preprocessing } = model;
  const size = ([height, width]) => `${height}\u00a0×\u00a0${width}`;
  const facts = [
    ["Kind", KINDS[model.kind] ?? model.kind],
    ["Parameters", whole.format(model.parameters)],
    ["GFLOPs per image", String(Number(model.gflops.toPrecision(3)))],
    ["Input", `${size(preprocessing.image_size)}, ${preprocessing.mean.length === 1 ? "gray" : `${preprocessing.mean.length} channels`}`],
    ["Resize", RESIZES[preprocessing.resize] ?? preprocessing.resize],
    attention && ["Patches", `${size(attention.grid)}, each ${size(attention.patch)} pixels`],
    attention && ["Layers, heads", `${attention.layers}, ${attention.heads}`],
    attention && ["Positions", attention.positions],
    model.temperature !== 1 && ["Temperature", model.temperature.toFixed(3)],
    model.abstain > 0 && ["No label below", share(model.abstain)],
    ["Device", model.device],
    ...[...Object.entries(model.recipe), ...Object.entries(model.about)]
      .filter(([, value]) => typeof value !== "object")
      .map(([key, value]) => [named(key), typeof value === "number" ? figure(key, value) : value]),
  ];
  document.getElementById("card").replaceChildren(...facts.filter(Boolean).flatMap(([name, value]) => [text("dt", name), text("dd", value)]));
  const results = model.about.results;
  if (results && typeof results === "object") document.getElementById("results").replaceChildren(...resultTable(results, model.calibration));
  const classes = document.getElementById("classes");
  classes.querySelector("summary").textContent = `${whole.format(model.labels.length)} classes`;
  classes.querySelector("p").textContent = model.labels.join(", ");
}

/** A share in percent, without the digits that binary fractions add. */
export const share = (value) => `${Number((100 * value).toPrecision(6))}\u00a0%`;

function resultTable(results, calibration) {
  const splits = Object.entries(results).filter(([, value]) => value && typeof value === "object");
  const names = [...new Set(splits.flatMap(([, value]) => Object.keys(value)))]
    .filter((name) => splits.some(([, value]) => typeof value[name] === "number"));
  const table = document.createElement("table");
  table.append(text("caption", calibration ? "Measured results, from before the calibration" : "Measured results"));
  const head = table.createTHead().insertRow();
  head.append(...["", ...splits.map(([split]) => named(split))].map((name) => text("th", name)));
  const body = table.createTBody();
  for (const name of names) {
    const row = body.insertRow();
    row.append(text("th", named(name)), ...splits.map(([, value]) => text("td", figure(name, value[name]))));
  }
  return calibration ? [table, text("p", calibration)] : [table];
}

function figure(name, value) {
  if (typeof value !== "number") return "";
  if (SHARES.has(name) && value <= 1) return `${(100 * value).toFixed(2)}\u00a0%`;
  return Number.isInteger(value) ? whole.format(value) : String(Number(value.toPrecision(4)));
}

function text(kind, value) {
  const element = document.createElement(kind);
  element.textContent = value;
  return element;
}
