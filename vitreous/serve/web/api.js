// Talks to the server that this page came from, and to nobody else.

let token = sessionStorage.getItem("vitreous-token") || "";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function useToken(value) {
  token = value;
  sessionStorage.setItem("vitreous-token", value);
}

async function ask(path, options = {}) {
  const headers = { ...(token && { Authorization: `Bearer ${token}` }), ...options.headers };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server can't be reached.");
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw new Refused(response.status, problem.message || `The server answered ${response.status}.`);
}

function send(path, image, signal) {
  return ask(path, { method: "POST", body: image, signal, headers: { "Content-Type": "application/octet-stream" } });
}

export const getModel = async () => (await ask("/model")).json();
export const getExamples = async () => (await ask("/examples")).json();
export const getExample = async (name) => (await ask(`/examples/${encodeURIComponent(name)}`)).blob();
export const predict = async (image) => (await (await send("/predict", image)).json()).predictions[0];
export const preprocess = async (image) => (await send("/preprocess", image)).blob();
export const getPositions = async () => halves(await ask("/positions"));

/** Every token's row of a layer: {shape: [heads, tokens, tokens], data}. */
export async function allRows(image, kind, layer) {
  return halves(await send(`/attention?kind=${kind}&layer=${layer}&head=all&patch=all`, image));
}

/** One token's row of a layer, for grids whose whole layer would be too much to send. */
export async function oneRow(image, kind, layer, patch) {
  const answer = await (await send(`/attention?kind=${kind}&layer=${layer}&head=all&patch=${patch}`, image)).json();
  return answer.maps.map((map) => Float32Array.from(map.flat()));
}

let table = null;

async function halves(response) {
  const shape = response.headers.get("X-Shape").split(",").map(Number);
  const bits = new Uint16Array(await response.arrayBuffer());
  table ??= Float32Array.from({ length: 65536 }, (_, half) => widen(half));
  return { shape, data: Float32Array.from(bits, (half) => table[half]) };
}

function widen(half) {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 31;
  const fraction = half & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
