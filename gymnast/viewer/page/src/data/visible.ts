// Text of others with its control characters written as escapes, as `gymnast/visible.py` does: a
// browser shows an empty box for them, or nothing, or turns the line around.

const HIDDEN = /(?![\n\t\u200c\u200d])[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;

export function visible(text: string): string {
  return text.replace(HIDDEN, escaped);
}

function escaped(character: string): string {
  if (character === "\r") return "\\r";
  const code = character.codePointAt(0)!;
  const [mark, digits] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
  return `\\${mark}${code.toString(16).padStart(digits as number, "0")}`;
}
