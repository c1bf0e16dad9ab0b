// The model's card: everything is inserted as text.

const whole = new Intl.NumberFormat("en");

export function fillCard(model) {
  const { attention, preprocessing } = model;
  const size = ([height, width]) => `${height} × ${width}`;
  const facts = [
    ["Kind", model.kind],
    ["Parameters", whole.format(model.parameters)],
    ["GFLOPs an image", String(Number(model.gflops.toPrecision(3)))],
    ["Input", `${size(preprocessing.image_size)}, ${preprocessing.mean.length === 1 ? "gray" : `${preprocessing.mean.length} channels`}`],
    ["Resize", preprocessing.resize],
    attention && ["Patches", `${size(attention.grid)} of ${size(attention.patch)} pixels`],
    attention && ["Layers, heads", `${attention.layers}, ${attention.heads}`],
    attention && ["Positions", attention.positions],
    model.temperature !== 1 && ["Temperature", model.temperature.toFixed(3)],
    model.abstain > 0 && ["No label below", `${100 * model.abstain} %`],
    ["Computes on", model.device],
    ...Object.entries(model.recipe),
    ...Object.entries(model.about).filter(([, value]) => typeof value !== "object"),
  ];
  document.getElementById("card").replaceChildren(...facts.filter(Boolean).flatMap(([name, value]) => [text("dt", name), text("dd", value)]));
  const results = model.about.results;
  if (results && typeof results === "object") document.getElementById("results").replaceChildren(resultTable(results));
  const classes = document.getElementById("classes");
  classes.querySelector("summary").textContent = `${whole.format(model.labels.length)} classes`;
  classes.querySelector("p").textContent = model.labels.join(", ");
}

function resultTable(results) {
  const splits = Object.entries(results).filter(([, value]) => value && typeof value === "object");
  const names = [...new Set(splits.flatMap(([, value]) => Object.keys(value)))]
    .filter((name) => splits.some(([, value]) => typeof value[name] === "number"));
  const table = document.createElement("table");
  table.append(text("caption", "Measured results"));
  const head = table.createTHead().insertRow();
  head.append(...["", ...splits.map(([split]) => split)].map((name) => text("th", name)));
  const body = table.createTBody();
  for (const name of names) {
    const row = body.insertRow();
    row.append(text("th", name), ...splits.map(([, value]) => text("td", figure(name, value[name]))));
  }
  return table;
}

function figure(name, value) {
  if (typeof value !== "number") return "";
  if (["accuracy", "top5", "top1", "ece"].includes(name) && value <= 1) return `${(100 * value).toFixed(2)} %`;
  return Number.isInteger(value) ? whole.format(value) : value.toPrecision(4);
}

function text(kind, value) {
  const element = document.createElement(kind);
  element.textContent = value;
  return element;
}
