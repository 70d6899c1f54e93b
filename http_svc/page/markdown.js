// Renders Markdown as elements. The library only splits the text; no HTML of an answer is ever parsed.

import { make } from "./dom.js";
import { lexer } from "./vendor/marked.js";

const INLINE = { strong: "strong", em: "em", del: "del" };
const SAFE = /^(https?:|mailto:)/i;

/** Blocks of a text: { raw, start, render(leaf) }; `leaf(text, offsets)` returns the nodes of a piece of the text. */
export function blocks(text) {
  const source = text.replaceAll("\r", " ");
  let start = 0;
  return lexer(source).map((token) => {
    const block = { raw: token.raw, start, render: (leaf) => new Renderer(source, block.start, leaf).block(token) };
    start += token.raw.length;
    return block;
  });
}

class Renderer {
  constructor(source, start, leaf) {
    this.source = source;
    this.place = start; // first character of the source that is not shown yet
    this.leaf = leaf;
  }

  block(token) {
    switch (token.type) {
      case "heading": return make(`h${Math.min(6, token.depth + 3)}`, {}, ...this.inline(token.tokens));
      case "paragraph": return make("p", {}, ...this.inline(token.tokens));
      case "code": return this.code(token);
      case "blockquote": return make("blockquote", {}, ...this.all(token.tokens));
      case "list": return make(token.ordered ? "ol" : "ul", token.ordered ? { start: token.start || 1 } : {},
        ...token.items.map((item) => this.#within(item, () => make("li", {}, ...this.all(item.tokens)))));
      case "table": return make("table", {},
        make("thead", {}, this.row(token.header, "th")), make("tbody", {}, ...token.rows.map((row) => this.row(row, "td"))));
      case "hr": return make("hr");
      case "space": case "def": case "checkbox": return null;
      case "text": return make("span", {}, ...(token.tokens ? this.inline(token.tokens) : this.text(token.text)));
      default: return make("p", {}, ...this.text(token.raw));
    }
  }

  all(tokens) {
    return tokens.map((token) => this.#within(token, () => this.block(token)));
  }

  row(cells, name) {
    return make("tr", {}, ...cells.map((cell) => make(name, {}, ...this.inline(cell.tokens))));
  }

  code(token) {
    const body = make("code", {}, ...this.text(token.text));
    const copy = make("button", { type: "button", class: "quiet copy" }, "Copy");
    copy.addEventListener("click", () => navigator.clipboard.writeText(token.text).then(() => (copy.textContent = "Copied")));
    return make("div", { class: "code" }, make("pre", { tabindex: "0" }, body), navigator.clipboard ? copy : null);
  }

  inline(tokens) {
    return tokens.flatMap((token) => this.#within(token, () => this.#inline(token)));
  }

  #inline(token) {
    if (INLINE[token.type]) return [make(INLINE[token.type], {}, ...this.inline(token.tokens))];
    if (token.type === "codespan") return [make("code", {}, ...this.text(token.text))];
    if (token.type === "br") return [make("br")];
    if (token.type === "escape") return this.text(token.text);
    if (token.type === "link") {
      const content = this.inline(token.tokens);
      return SAFE.test(token.href) ? [make("a", { href: token.href, rel: "noreferrer", target: "_blank" }, ...content)] : content;
    }
    return token.tokens ? this.inline(token.tokens) : this.text(token.raw);
  }

  /** Shows characters, each at its next place in the source. */
  text(text) {
    const offsets = [];
    for (let i = 0; i < text.length; i++) {
      const at = this.source.indexOf(text[i], this.place);
      if (at >= 0) this.place = at + 1;
      offsets.push(this.place - 1);
    }
    return this.leaf(text, offsets);
  }

  /** Renders a token between the ends of its source, if it is there as it is; indented lines of lists are not. */
  #within(token, render) {
    const at = this.source.indexOf(token.raw, this.place);
    if (at >= 0) this.place = at;
    const rendered = render();
    if (at >= 0) this.place = at + token.raw.length;
    return rendered;
  }
}
