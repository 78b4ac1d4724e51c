"""The look of a report: light and dark, from a phone's width up. No script, nothing fetched."""

# Colours follow Okabe and Ito, which people with any colour vision tell apart; each is also named
# in words wherever it stands.
CSS = """
:root{color-scheme:light dark;--bg:#fdfdfc;--panel:#fff;--ink:#1b1f24;--soft:#57606a;
--line:#d5dae0;--accent:#0b5cad;--track:#e8ebef;--warn:#7a4b00;--warnbg:#fff6e0;
--compute:#3b7dc4;--all-gather:#d98300;--all-reduce:#c8501e;--reduce-scatter:#00855f;
--all-to-all:#a8548a;--collective-permute:#7d6f00;--memory:#3b7dc4;--host-a:#eaf2fb;--host-b:#f3f0e4}
@media(prefers-color-scheme:dark){:root{--bg:#14171b;--panel:#1b1f25;--ink:#e8ebef;--soft:#a5afba;
--line:#39414b;--accent:#7db8f5;--track:#2a3038;--warn:#ffd58a;--warnbg:#33290f;--compute:#5b9fe6;
--all-gather:#f0a832;--all-reduce:#f07f4c;--reduce-scatter:#2fc296;--all-to-all:#d68cba;
--collective-permute:#cdbd3c;--memory:#5b9fe6;--host-a:#1f2b3a;--host-b:#2c2a20}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main,header{max-width:1080px;margin:0 auto;padding:0 16px}
header{padding-top:24px}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:40px 0 8px;padding-top:8px;border-top:1px solid var(--line)}
h3{font-size:1rem;margin:20px 0 4px}
p{margin:6px 0;max-width:75ch}
.lead{font-size:1.05rem}
summary{font-weight:600;padding:8px 0;cursor:pointer}
details[open]{border-bottom:1px solid var(--line);padding-bottom:16px}
.soft,caption,figcaption{color:var(--soft)}
a{color:var(--accent)}
a:focus-visible,.scroll:focus-visible,summary:focus-visible{outline:3px solid var(--accent);
outline-offset:2px}
nav ul{display:flex;flex-wrap:wrap;gap:4px 16px;padding:0;margin:14px 0 0;list-style:none}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:12px;
margin:18px 0 0;padding:0}
.tile{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:10px 14px}
.tile dt{color:var(--soft);font-size:.85rem}
.tile dd{margin:0;font-size:1.3rem;font-weight:600;font-variant-numeric:tabular-nums;
overflow-wrap:anywhere}
.tile small{display:block;font-size:.8rem;font-weight:400;color:var(--soft)}
.scroll{overflow-x:auto;margin:8px 0 4px;
background:linear-gradient(90deg,var(--bg) 30%,transparent) 0 0/40px 100% no-repeat local,
linear-gradient(270deg,var(--bg) 30%,transparent) 100% 0/40px 100% no-repeat local,
linear-gradient(90deg,var(--line),transparent) 0 0/10px 100% no-repeat scroll,
linear-gradient(270deg,var(--line),transparent) 100% 0/10px 100% no-repeat scroll}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
caption{text-align:left;padding:4px 0 6px;font-size:.9rem}
th,td{text-align:left;padding:5px 12px 5px 0;border-bottom:1px solid var(--line);
vertical-align:top}
tbody th{font-weight:500;overflow-wrap:break-word;min-width:11ch}
tbody th code,code span{white-space:nowrap}
td{white-space:nowrap}
td.wrap{white-space:normal;min-width:22ch}
.num{text-align:right}
code{font:.92em/1.4 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
.bar{display:inline-block;width:110px;height:10px;border-radius:3px;background:var(--track);
vertical-align:middle}
.fill{display:block;height:100%;border-radius:3px;min-width:1px}
ul.warnings{list-style:none;padding:0}
ul.warnings li{background:var(--warnbg);color:var(--warn);border-left:4px solid currentColor;
padding:8px 12px;margin:8px 0;border-radius:4px;overflow-wrap:anywhere}
figure{margin:12px 0}
figcaption{font-size:.9rem;margin-top:6px}
svg{display:block;max-width:100%}
svg text{fill:var(--ink);font:12px system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
svg text.soft{fill:var(--soft)}
svg text.strong{font-weight:600}
.lane{display:grid;grid-template-columns:190px 1fr;gap:2px 12px;align-items:center;margin:6px 0}
.lane svg{width:100%;height:26px;background:var(--track);border-radius:4px}
.lane span{font-size:.9rem}
.axis{display:flex;justify-content:space-between;color:var(--soft);font-size:.85rem;
font-variant-numeric:tabular-nums}
.lane .axis{grid-column:2}
.plot{position:relative}
.plot svg{width:100%;height:180px;background:var(--track);border-radius:4px}
.box{fill:var(--panel);stroke:var(--line)}
.arc{fill:none;stroke:var(--soft);stroke-width:1.5}
.limit{stroke:var(--all-reduce);stroke-width:2;stroke-dasharray:6 4;fill:none}
.area{fill:var(--memory);opacity:.85}
.dot-plan{fill:var(--accent)}
.dot-other{fill:none;stroke:var(--soft);stroke-width:2}
.front{fill:none;stroke:var(--accent);stroke-width:2}
.host-a{fill:var(--host-a);stroke:var(--line)}
.host-b{fill:var(--host-b);stroke:var(--line)}
.k-compute{fill:var(--compute);background:var(--compute)}
.k-memory{fill:var(--memory);background:var(--memory)}
.k-all-gather{fill:var(--all-gather);background:var(--all-gather)}
.k-all-reduce{fill:var(--all-reduce);background:var(--all-reduce)}
.k-reduce-scatter{fill:var(--reduce-scatter);background:var(--reduce-scatter)}
.k-all-to-all{fill:var(--all-to-all);background:var(--all-to-all)}
.k-collective-permute{fill:var(--collective-permute);background:var(--collective-permute)}
.k-forward{fill:var(--compute)}
.k-backward{fill:var(--all-gather)}
.k-weight{fill:var(--reduce-scatter)}
.k-transfer{fill:var(--all-to-all);background:var(--all-to-all)}
.charts{display:grid;gap:8px 24px;
grid-template-columns:repeat(auto-fit,minmax(min(320px,100%),1fr))}
td .why{display:block;white-space:normal;min-width:22ch;max-width:60ch}
.grid{fill:none;stroke:var(--line)}
.ideal{fill:none;stroke:var(--soft);stroke-dasharray:2 4}
.line,.swatch{fill:none;stroke-width:2}
.dashed{stroke-dasharray:6 3;border-top-style:dashed}
.line-0{stroke:var(--compute);color:var(--compute)}
.line-1{stroke:var(--all-gather);color:var(--all-gather)}
.line-2{stroke:var(--reduce-scatter);color:var(--reduce-scatter)}
.line-3{stroke:var(--all-reduce);color:var(--all-reduce)}
.line-4{stroke:var(--all-to-all);color:var(--all-to-all)}
.line-5{stroke:var(--collective-permute);color:var(--collective-permute)}
.dot{fill:currentColor;stroke:none}
.legend{display:flex;flex-wrap:wrap;gap:4px 20px;padding:0;list-style:none}
.swatch{display:inline-block;width:26px;border-top:3px solid currentColor;vertical-align:middle;
margin-right:8px}
footer{max-width:1080px;margin:40px auto 0;padding:12px 16px 40px;color:var(--soft);
font-size:.85rem;border-top:1px solid var(--line);overflow-wrap:anywhere}
@media(max-width:600px){.lane{grid-template-columns:1fr}.lane .axis{grid-column:1}
.tiles{grid-template-columns:1fr 1fr}.tile dd{font-size:1.1rem}
th,td{padding-right:10px}.bar{width:70px}}
@media print{body{background:#fff}.scroll{overflow:visible}}
"""
