// Requests to the server that this page came from, and to no other.

let token = sessionStorage.getItem("vitreous-token") || "";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** What the page shows for a refusal; the server's own messages are for programs that send requests. */
function sentence(response, problem) {
  if (response.status === 401) return token ? "That is not this server's token." : "This server asks for a token: enter it above.";
  if (response.status === 413) return "The picture is larger than this server accepts.";
  if (response.status === 429) return `The server is busy: try again in ${response.headers.get("Retry-After") ?? "a few"} s.`;
  const said = problem.message || `the server answered ${response.status}`;
  return `${said.charAt(0).toUpperCase()}${said.slice(1)}.`;
}

/** Refuse a picture that the server would refuse for its size, before it is sent. */
export function checkSize(image, most) {
  const mebibytes = (bytes) => `${Number((bytes / 2 ** 20).toPrecision(2))}\u00a0MiB`;
  if (image.size <= most) return;
  throw new Refused(413, `The picture has ${mebibytes(image.size)}: this server takes up to ${mebibytes(most)}.`);
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
  throw new Refused(response.status, sentence(response, problem));
}

function send(path, image, signal) {
  return ask(path, { method: "POST", body: image, signal, headers: { "Content-Type": "application/octet-stream" } });
}

/** Wait until the model is warm. */
export async function untilReady() {
  for (;;) {
    try {
      return await ask("/readyz");
    } catch (error) {
      if (error.status !== 503) throw error;
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
  }
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

/** One token's row of a layer, for grids whose layers are too large to send whole. */
export async function oneRow(image, kind, layer, patch) {
  const answer = await (await send(`/attention?kind=${kind}&layer=${layer}&head=all&patch=${patch}`, image)).json();
  return answer.maps.map((map) => Float32Array.from(map.flat()));
}

/** What supports a class, by its number: one value for each patch. */
export async function relevance(image, label) {
  const answer = await (await send(`/relevance?label=${label}`, image)).json();
  return Float32Array.from(answer.map.flat());
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
