// Builds ../static from src: one script, one style sheet, and the licences of what they contain.
//
//     npm ci && npm run build      

import { build } from "esbuild";
import { readFile, writeFile } from "node:fs/promises";

const OUT = "../static";
const own = JSON.parse(await readFile("package.json", "utf8"));

await build({
  entryPoints: { page: "src/main.tsx" },
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none", // they are in LICENSES.txt
  outdir: OUT,
});

const licences = await Promise.all(
  Object.keys(own.dependencies).map(async (name) => {
    const { version, license } = JSON.parse(await readFile(`node_modules/${name}/package.json`, "utf8"));
    const text = await readFile(`node_modules/${name}/LICENSE`, "utf8");
    return `${name} ${version} (${license})\n\n${text.trim()}\n`;
  }),
);
await writeFile(
  `${OUT}/LICENSES.txt`,
  ["page.js and page.css contain these packages.\n", ...licences].join(`\n${"-".repeat(80)}\n\n`),
);
