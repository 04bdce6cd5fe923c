/** Bytes and paths in the form of the wire: `docs/protocol.md`, "Common types". */

const encoder = new TextEncoder();
const decoder = new TextDecoder();

/** Node's class, where there is one: it converts base64 many times faster than `atob`. */
const NodeBuffer = (globalThis as { Buffer?: typeof Buffer }).Buffer;

/** At most so many arguments fit one call of `String.fromCharCode`. */
const PIECE = 0x2000;

/** The bytes of a text in UTF-8; bytes stay as they are. */
export function toBytes(data: string | Uint8Array): Uint8Array {
  return typeof data === "string" ? encoder.encode(data) : data;
}

/** The text of bytes in UTF-8; invalid bytes become U+FFFD. */
export function toText(data: Uint8Array): string {
  return decoder.decode(data);
}

/** Standard base64 with padding (B1). */
export function toBase64(data: Uint8Array): string {
  if (NodeBuffer) return NodeBuffer.from(data.buffer, data.byteOffset, data.byteLength).toString("base64");
  let text = "";
  for (let start = 0; start < data.length; start += PIECE) {
    text += String.fromCharCode(...data.subarray(start, start + PIECE));
  }
  return btoa(text);
}

/** The bytes of standard base64. */
export function fromBase64(text: string): Uint8Array {
  if (NodeBuffer) {
    const buffer = NodeBuffer.from(text, "base64");
    return new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength);
  }
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** Several arrays as one. */
export function concat(pieces: readonly Uint8Array[]): Uint8Array {
  const whole = new Uint8Array(pieces.reduce((size, piece) => size + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}

/**
 * The URI of an absolute path at the executor (U1).
 *
 * Throws `TypeError` for a relative path.
 */
export function pathUri(path: string): string {
  if (!path.startsWith("/")) throw new TypeError(`the path must be absolute: ${path}`);
  return `file://${path.split("/").map(encodeURIComponent).join("/")}`;
}

/** The path of a URI from the executor. A byte that is not UTF-8 becomes U+FFFD. */
export function uriPath(uri: string): string {
  const escaped = uri.replace(/^file:\/\//, "");
  try {
    return decodeURIComponent(escaped);
  } catch {
    return toText(Uint8Array.from(
      escaped.replace(/%([0-9A-Fa-f]{2})/g, (_, digits: string) => String.fromCharCode(parseInt(digits, 16))),
      (character) => character.charCodeAt(0),
    ));
  }
}

/** A name that no other client chooses. */
export function newId(): string {
  return crypto.randomUUID().slice(0, 8) + crypto.randomUUID().slice(0, 4);
}
