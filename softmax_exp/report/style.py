"""How a page looks, light and dark, and its one script: filtering the table of all cells."""

CSS = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1b1f24;--soft:#5b6470;--rule:#d5dae0;--panel:#f6f8fa;--link:#0b5cad;
--good:#4b9be0;--bad:#e8964a;--s0:#0b62b8;--s1:#b8480a;--s2:#14743a;--s3:#8a2fc4;--s4:#a3153b;--s5:#00707d;--s6:#7a5a00;
--s7:#4a4f57}
@media (prefers-color-scheme:dark){:root{--paper:#14171b;--ink:#e6e9ed;--soft:#a3adb8;--rule:#3a424c;--panel:#1c2026;
--link:#7cbcff;--good:#1f5f9e;--bad:#93500f;--s0:#6cb3ff;--s1:#ff9e5e;--s2:#5fd08a;--s3:#cf9bff;--s4:#ff8aa5;--s5:#4fd3e0;
--s6:#e0bd4f;--s7:#b9c0c9}}
*{box-sizing:border-box}
body{margin:0 auto;padding:16px 20px 64px;max-width:1360px;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;overflow-wrap:anywhere}
h1{font-size:1.6rem;line-height:1.25;margin:.4em 0 .2em}h2{font-size:1.25rem;margin:2.2em 0 .5em;
border-top:1px solid var(--rule);padding-top:1em}h3{font-size:1rem;margin:1.2em 0 .3em}
.lead{font-size:1.12rem;max-width:62em}.note,.about{color:var(--soft)}p,ul{max-width:62em}
a{color:var(--link)}nav a{display:inline-block;padding:6px 14px 6px 0}
:focus-visible{outline:3px solid var(--link);outline-offset:2px}
.skip{position:absolute;left:-999px}.skip:focus{left:8px;top:8px;background:var(--paper);padding:8px;z-index:9}
.grid-of-figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,380px),1fr));gap:20px;
align-items:start}
figure{margin:0;padding:10px;background:var(--panel);border:1px solid var(--rule);border-radius:8px;min-width:0}
figcaption{font-weight:600;font-size:.92rem;margin-bottom:4px}
svg.chart{display:block;width:100%;height:auto;overflow:visible}svg text{fill:var(--ink);font-size:12px}
svg .axis{fill:var(--soft)}svg .mid{text-anchor:middle}svg .name{font-weight:600}
.grid{stroke:var(--rule);fill:none}.frame{fill:none;stroke:var(--rule)}
.limit{fill:none;stroke:var(--soft);stroke-width:1.6;stroke-dasharray:6 4}
.s0{--c:var(--s0)}.s1{--c:var(--s1)}.s2{--c:var(--s2)}.s3{--c:var(--s3)}.s4{--c:var(--s4)}.s5{--c:var(--s5)}
.s6{--c:var(--s6)}.s7{--c:var(--s7)}
polyline{fill:none;stroke:var(--c);stroke-width:1.8}.p1 polyline,.p1 .line{stroke-dasharray:5 3}
.p2 polyline,.p2 .line{stroke-dasharray:2 2}
.bar{stroke:var(--c);stroke-width:1.4}.mark{fill:var(--c);stroke:var(--panel);stroke-width:.7}
.p1 .mark{fill:var(--panel);stroke:var(--c);stroke-width:1.6}
.line{stroke:var(--c);stroke-width:1.6}.box{fill:var(--c);fill-opacity:.35;stroke:var(--c)}
.rug{stroke:var(--c);stroke-opacity:.4}.median{stroke:var(--ink);stroke-width:2}
.legend{list-style:none;margin:6px 0 0;padding:0;display:flex;flex-wrap:wrap;gap:2px 14px;font-size:.85rem}
.swatch{width:22px;height:14px;vertical-align:-2px;margin-right:3px}
.scroll{overflow-x:auto;max-width:100%}table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
caption{text-align:left;font-weight:600;padding:2px 0 6px}
th,td{overflow-wrap:normal;padding:4px 9px;border-bottom:1px solid var(--rule);text-align:right;white-space:nowrap}
th[scope=row],.text,thead th:first-child{text-align:left}thead th{color:var(--soft);font-weight:600}
tbody th{font-weight:600}.off{color:var(--soft);font-style:italic}.differs{color:var(--s1)}
.heat td{min-width:44px;text-align:center}
.heat caption{white-space:nowrap}.heat thead th+th{text-align:center}
.heat td.good{background:color-mix(in srgb,var(--good) var(--p),var(--paper))}
.heat td.bad{background:color-mix(in srgb,var(--bad) var(--p),var(--paper))}
.heat th[scope=row]{position:sticky;left:0;background:var(--paper)}
details{margin:.6em 0}summary{cursor:pointer;padding:4px 0;font-weight:600}
.verdicts li,.failures li{margin:.35em 0}pre{background:var(--panel);border:1px solid var(--rule);border-radius:6px;
padding:10px;overflow-x:auto;white-space:pre-wrap;font-size:.85rem}
input{font:inherit;color:inherit;background:var(--panel);border:1px solid var(--soft);border-radius:6px;padding:5px 9px;
max-width:100%}
.warning{border-left:4px solid var(--bad);padding:4px 12px;background:var(--panel)}
.slower{color:var(--s1);font-weight:600}.faster{color:var(--s0);font-weight:600}
@media (max-width:600px){.text,th[scope=row]{white-space:normal;min-width:7.5em}td.text{min-width:5em}
body{padding:10px 12px 48px}h1{font-size:1.35rem}svg text{font-size:13px}}
@media print{nav,.skip,input,label{display:none}}
"""

SCRIPT = """
const box = document.getElementById('filter');
if (box) {
  const rows = [...document.querySelectorAll('#all tbody tr')].map(row => [row, row.textContent.toLowerCase()]);
  const told = document.querySelector('output');
  box.addEventListener('input', () => {
    const words = box.value.toLowerCase().split(/\\s+/).filter(Boolean);
    let shown = 0;
    for (const [row, text] of rows) {
      const hit = words.every(word => text.includes(word));
      row.hidden = !hit;
      shown += hit;
    }
    told.textContent = words.length ? shown + ' of ' + rows.length + ' rows' : '';
  });
}
"""
