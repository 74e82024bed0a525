"""Draws docs/images/token.svg, a token's way from the row to the gradient, for docs/inside.md.

python docs/images/draw_token.py
"""

from html import escape
from pathlib import Path

WIDTH, HEIGHT = 860, 668
LEFT, CELL = 104, 52  # of the strip of tokens

STYLE = """
text { font: 14px system-ui, sans-serif; fill: var(--ink); }
.head { font-size: 16px; font-weight: 600; }
.name { font: 13px ui-monospace, monospace; }
.cell { font: 12px ui-monospace, monospace; }
.soft { fill: var(--soft); font-size: 13px; }
.cell, .on { text-anchor: middle; }
.prompt { fill: var(--prompt); }
.action { fill: var(--action); }
.observation { fill: var(--seen); }
.on-action { fill: #fff; }
.card { fill: var(--card); stroke: var(--line); }
.box { fill: var(--card); stroke: var(--ink); stroke-width: 1.2; }
.line { fill: none; stroke: var(--ink); stroke-width: 1.4; }
.faint { stroke: var(--line); fill: none; }
svg { --card: #fff; --ink: #1c2430; --soft: #556070; --line: #c9d0da;
      --prompt: #dde2ea; --action: #1f5fc4; --seen: #f5d78a; }
@media (prefers-color-scheme: dark) {
  svg { --card: #14181f; --ink: #e8ecf2; --soft: #a9b4c2; --line: #46505f;
        --prompt: #3b4453; --action: #2f6fd8; --seen: #7a5b14; }
}
""".strip()

TITLE = "A token's way from a dataset row to the gradient"
DESCRIPTION = (
    "An episode is one list of token ids that only grows. Environment.reset gives the prompt, with "
    "action mask 0; Agent.generate samples an action, with mask 1 and a log-probability for each "
    "token; Environment.step runs the calls in it and gives the observation, with mask 0; "
    "Agent.generate samples the answer, with mask 1. Three episodes of one row are compared: "
    "rewards 1, 0 and 1 become the advantages +0.5, -1 and +0.5 of their action tokens. Their "
    "shared prompt is packed once. A forward pass gives the log-probabilities of the action "
    "tokens, the loss is made of these and the advantages, an optimizer step changes the weights, "
    "and the next tokens are sampled by the new version."
)

# Who gives which tokens: the part, its class in the drawing, what it does, its tokens.
PARTS = [
    ("Environment.reset", "prompt", "row to messages to ids", ["What", "is", "6 * 7", "?"]),
    ("Agent.generate", "action", "samples", ["<call>", "times", "6 7", "<end>"]),
    ("Environment.step", "observation", "parses, runs, renders", ["<tool>", "42", "<turn>"]),
    ("Agent.generate", "action", "samples", ["It", "is 42", "<end>"]),
]
LOGPROBS = ["-0.1", "-0.9", "-0.2", "-0.3", "-0.4", "-0.3", "-0.1"]
ADVANTAGE = "+0.5"
GROUP = [("1", "+0.5", (3, 2, 2)), ("0", "-1", (2, 2, 3)), ("1", "+0.5", (4, 2, 1))]
FLOW = [
    ("forward pass", "log-probabilities", "of action tokens"),
    ("loss", "ratio * advantage,", "where the mask is 1"),
    ("optimizer step", "gradient of the", "trained weights"),
    ("new weights", "version + 1", "samples next"),
]


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Words at a place, which the class `kind` styles."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(words)}</text>'


def bar(x: float, y: float, width: float, height: float, kind: str) -> str:
    """A rectangle with round corners."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" class="{kind}"/>'
    )


def arrow(path: str) -> str:
    """A line with a tip at its end."""
    return f'<path d="{path}" class="line" marker-end="url(#tip)"/>'


def episode(top: float) -> list[str]:
    """The strip of tokens, who gives them, and what is kept of each."""
    rows = ["ids", "action_mask", "logprobs", "advantages"]
    drawn = [text(24, top, "1  An episode: one list of ids, which only grows", "head")]
    strip, x = top + 66, float(LEFT)
    heights = [strip + 22 + 40 * number for number in range(len(rows))]
    drawn += [text(24, y, name, "soft") for y, name in zip(heights, rows, strict=True)]
    logprobs = iter(LOGPROBS)
    for name, kind, does, tokens in PARTS:
        width = CELL * len(tokens)
        drawn += [text(x + 2, strip - 34, name, "name"), text(x + 2, strip - 16, does, "soft")]
        drawn.append(f'<path d="M{x + 2:g},{strip - 8:g} h{width - 8:g}" class="line"/>')
        for token in tokens:
            middle, sampled = x + CELL / 2 - 2, kind == "action"
            drawn.append(bar(x, strip, CELL - 4, 34, kind))
            values = [token, "0", "0", "0"]
            if sampled:
                values = [token, "1", next(logprobs), ADVANTAGE]
            for y, value in zip(heights, values, strict=True):
                look = "" if sampled or y == heights[0] else " soft"
                look = " on-action" if sampled and y == heights[0] else look
                drawn.append(text(middle, y, value, f"cell{look}"))
            x += CELL
    return drawn


def group(top: float) -> list[str]:
    """Three episodes of one row as a tree, with their rewards and advantages."""
    drawn = [text(24, top, "2  A group: episodes of one row, compared and packed", "head")]
    first, step = top + 22, 40
    middle = first + step + 13
    drawn.append(bar(LEFT, middle - 13, 160, 26, "prompt"))
    drawn.append(text(LEFT + 80, middle + 5, "prompt", "on"))
    drawn.append(text(LEFT, middle + 34, "computed once", "soft"))
    for number, (reward, advantage, lengths) in enumerate(GROUP):
        y, x = first + step * number, LEFT + 204.0
        drawn.append(
            f'<path d="M{LEFT + 160},{middle:g} C{LEFT + 182},{middle:g} {LEFT + 182},{y + 13:g} '
            f'{x:g},{y + 13:g}" class="line"/>'
        )
        for kind, length in zip(("action", "observation", "action"), lengths, strict=True):
            drawn.append(bar(x, y, 32 * length - 3, 26, kind))
            if length > 1:
                on = "on on-action" if kind == "action" else "on"
                said = "action" if kind == "action" else "result"
                drawn.append(text(x + 16 * length - 2, y + 18, said, on))
            x += 32 * length
        told = f"reward {reward}, advantage {advantage}"
        drawn.append(text(LEFT + 204 + 32 * 7 + 20, y + 18, told))
    return drawn


def learning(top: float) -> list[str]:
    """From the packed tokens to new weights."""
    drawn = [text(24, top, "3  An update: from packed tokens to new weights", "head")]
    width, gap, y = 168, 36, top + 20
    for number, (name, *lines) in enumerate(FLOW):
        x = 24 + number * (width + gap)
        drawn += [bar(x, y, width, 84, "box"), text(x + 14, y + 26, name, "name")]
        drawn += [text(x + 14, y + 48 + 20 * n, line, "soft") for n, line in enumerate(lines)]
        if number:
            drawn.append(arrow(f"M{x - gap + 3:g},{y + 42:g} h{gap - 9:g}"))
    return drawn


def svg() -> str:
    """The drawing."""
    last = 24 + 3 * (168 + 36) + 168
    body = [
        bar(0.5, 0.5, WIDTH - 1, HEIGHT - 1, "card"),
        *episode(36),
        *group(330),
        *learning(542),
        # from what was sampled to the group, and from the new weights back to sampling
        arrow("M64,276 v26"),
        arrow("M64,474 v40"),
        arrow(f"M{last + 3},604 H846 V58 H796"),
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            'aria-labelledby="title description">',
            f'<title id="title">{escape(TITLE)}</title>',
            f'<desc id="description">{escape(DESCRIPTION)}</desc>',
            f"<style>\n{STYLE}\n</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto-start-reverse">'
            '<path d="M0,0 L8,4 L0,8 z" style="fill: var(--ink)"/></marker></defs>',
            *body,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    Path(__file__).with_name("token.svg").write_text(svg())
