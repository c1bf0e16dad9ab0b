// Draws maps over patches on canvases. Knows numbers and colours only.

const STOPS = [[27, 18, 54], [106, 28, 110], [207, 68, 70], [251, 155, 6], [252, 255, 164]];

/** The colour of a share from 0 to 1: dark violet to light yellow. */
export function colour(share, alpha = 1) {
  const place = Math.min(0.9999, Math.max(0, share)) * (STOPS.length - 1);
  const low = Math.floor(place);
  const part = STOPS[low].map((value, i) => Math.round(value + (place - low) * (STOPS[low + 1][i] - value)));
  return `rgb(${part.join(" ")} / ${alpha})`;
}

/** Fill each patch of a grid [rows, columns] with its value, the largest being the brightest. */
export function drawMap(canvas, values, grid, { over = false, low = 0, high = null } = {}) {
  const context = canvas.getContext("2d");
  const [rows, columns] = grid;
  const most = high ?? Math.max(low + 1e-9, ...values);
  const edge = (count, size, index) => Math.round((index * size) / count);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const share = (values[row * columns + column] - low) / (most - low);
      const [x, y] = [edge(columns, canvas.width, column), edge(rows, canvas.height, row)];
      const [right, below] = [edge(columns, canvas.width, column + 1), edge(rows, canvas.height, row + 1)];
      context.fillStyle = colour(share, over ? 0.35 + 0.35 * Math.min(1, Math.max(0, share)) : 1);
      context.fillRect(x, y, right - x, below - y);
    }
  }
  return most;
}

/** Draw the lines between patches. */
export function drawGrid(canvas, grid) {
  const context = canvas.getContext("2d");
  const [rows, columns] = grid;
  context.lineWidth = 1;
  context.strokeStyle = "rgb(255 255 255 / 0.35)";
  context.beginPath();
  for (let row = 1; row < rows; row++) {
    const y = Math.round((row * canvas.height) / rows) + 0.5;
    context.moveTo(0, y);
    context.lineTo(canvas.width, y);
  }
  for (let column = 1; column < columns; column++) {
    const x = Math.round((column * canvas.width) / columns) + 0.5;
    context.moveTo(x, 0);
    context.lineTo(x, canvas.height);
  }
  context.stroke();
}

/** Frame one patch, visibly on any picture. */
export function drawFrame(canvas, grid, patch) {
  const context = canvas.getContext("2d");
  const [rows, columns] = grid;
  const [width, height] = [canvas.width / columns, canvas.height / rows];
  const [x, y] = [(patch % columns) * width, Math.floor(patch / columns) * height];
  for (const [style, line] of [["#000000", 5], ["#ffffff", 2.5]]) {
    context.strokeStyle = style;
    context.lineWidth = line;
    context.strokeRect(x + 2.5, y + 2.5, width - 5, height - 5);
  }
}
