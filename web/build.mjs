// Builds the page into the product package, or into the folder of the first argument.
import { copyFile, mkdir } from "node:fs/promises";
import { build } from "esbuild";

const target = process.argv[2] ?? "../src/tessera/dashboard/assets";
await mkdir(target, { recursive: true });
await build({
  entryPoints: ["src/page.tsx", "src/page.css", "src/login.ts"],
  outdir: target,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  legalComments: "inline",
  logLevel: "warning",
  external: ["/assets/*"],
});
await copyFile("src/index.html", `${target}/index.html`);
await copyFile("../bundle/icon.svg", `${target}/icon.svg`);
