"use strict";
(() => {
  const EVERY_MS = 1000, SLOW_MS = 5000;
  const token = new URLSearchParams(location.search).get("token") || "";
  const headers = { "X-Spectune-Token": token };
  const $ = (id) => document.getElementById(id);
  const panel = $("live"), dialog = $("live-dialog"), title = document.title;
  const cards = new Map();
  let version = panel.dataset.version, said = "", answered = Date.now(), timer = 0, wanted = null;

  // Everything that comes from a server, a model or a file is put in as text, never as markup.
  const put = (node, text) => { if (node.textContent !== text) node.textContent = text; };
  const make = (name, className) => { const node = document.createElement(name); if (className) node.className = className; return node; };
  const plural = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
  const duration = (s) => {
    const whole = Math.max(0, Math.round(s)), h = Math.floor(whole / 3600), m = Math.floor(whole / 60) % 60;
    const two = (n) => String(n).padStart(2, "0");
    return h ? `${h}:${two(m)}:${two(whole % 60)}` : `${m}:${two(whole % 60)}`;
  };

  const STATES = {
    running: (s) => plural(s.running.length, "trial") + " running",
    between: () => "running, between two launches",
    stopped: () => "no spectune is working on this study, and launches are left",
    done: () => "done: every launch was made",
    imported: () => "measured by another tool",
    unreadable: (s) => s.problem || "the study cannot be read",
  };

  function phaseWords(t) {
    const parts = [t.phase || "preparing"];
    if (t.phase_s !== null) parts.push(duration(t.phase_s));
    if (t.share !== null) parts.push(`${Math.round(100 * t.share)} %`);
    const unit = t.phase === "soak" ? "s" : "requests";
    if (t.requests_total) parts.push(`${t.requests_done} of ${t.requests_total} ${unit}`);
    return parts.join(", ");
  }

  function card(t) {
    const root = make("article", "trial"), head = make("div", "trial-head");
    const name = make("h3"), stop = make("button"), phase = make("p", "phase-line"), bar = make("progress");
    const note = make("p"), fold = make("details"), summary = make("summary"), log = make("pre");
    stop.type = "button";
    fold.open = true;
    log.tabIndex = 0;
    put(summary, "End of the server's log");
    head.append(name, stop);
    fold.append(summary, log);
    root.append(head, phase, bar, note, fold);
    stop.addEventListener("click", () => {
      const now = cards.get(t.trial_id).trial;
      if (now.abort_asked) return;
      ask(`Stop trial ${now.number}, ${now.arm}?`,
        "The spectune that runs it stops its server and proves that it is gone, then goes on with the next launch. " +
        "The trial counts as failed.", t.trial_id);
    });
    return { root, name, stop, phase, bar, note, log, fold, trial: t };
  }

  function showTrial(t) {
    if (!cards.has(t.trial_id)) {
      cards.set(t.trial_id, card(t));
      $("live-trials").append(cards.get(t.trial_id).root);
    }
    const c = cards.get(t.trial_id);
    c.trial = t;
    put(c.name, `${t.number}  ${t.arm}`);
    put(c.stop, t.abort_asked ? "Stopping ..." : "Stop this trial ...");
    c.stop.setAttribute("aria-disabled", String(t.abort_asked));
    c.stop.setAttribute("aria-label", `${c.stop.textContent} (trial ${t.number}, ${t.arm})`);
    put(c.phase, phaseWords(t) + (t.silent_s !== null && t.silent_s > 12 ? `; not heard of for ${duration(t.silent_s)}` : ""));
    const share = t.requests_total ? t.requests_done / t.requests_total : t.share;
    c.bar.setAttribute("aria-label", `Share of the phase of trial ${t.number}`);
    c.bar.hidden = share === null;
    c.bar.max = 1;
    if (share !== null) c.bar.value = share;
    put(c.note, [t.hypothesis, t.message].filter(Boolean).join(". "));
    c.note.hidden = !c.note.textContent;
    c.log.setAttribute("aria-label", `End of the server's log of trial ${t.number}`);
    c.fold.hidden = t.log.length === 0;
    const text = t.log.join("\n"), selection = getSelection();
    const reading = selection && !selection.isCollapsed && c.log.contains(selection.anchorNode);
    if (!reading && c.log.textContent !== text) {
      const atEnd = c.log.scrollTop + c.log.clientHeight >= c.log.scrollHeight - 8;
      c.log.textContent = text;
      if (atEnd) c.log.scrollTop = c.log.scrollHeight;
    }
  }

  function show(s) {
    panel.dataset.state = s.state;
    put($("live-status"), (STATES[s.state] || (() => s.state))(s) + (s.abort_asked ? "; stopping, as was asked for" : ""));
    const total = s.num_total || 0;
    put($("live-ended"), total ? `${s.num_ended} of ${s.total_is_likely ? "about " : ""}${total}` + (s.num_failed ? `, ${s.num_failed} failed` : "") : "none");
    put($("live-left"), s.left_s === null ? "–" : `about ${duration(s.left_s)}`);
    put($("live-best"), s.best || "nothing compared yet");
    $("live-progress").max = Math.max(1, total);
    $("live-progress").value = s.num_ended;
    const button = $("abort-run");
    button.hidden = !s.can_abort;
    put(button, s.abort_asked ? "Stopping ..." : "Stop the run ...");
    button.setAttribute("aria-disabled", String(s.abort_asked));
    const present = new Set(s.running.map((t) => t.trial_id));
    for (const [id, c] of cards) if (!present.has(id)) { c.root.remove(); cards.delete(id); }
    s.running.forEach(showTrial);
    document.title = s.running.length ? `${s.num_ended + 1}/${total} ${s.running[0].phase || "preparing"} · ${title}` : title;
    // Spoken when the phase changes, not every second.
    const words = s.running.length ? s.running.map((t) => `Trial ${t.number}, ${t.arm}: ${t.phase || "preparing"}`).join(". ") : $("live-status").textContent;
    if (words !== said) put($("live-said"), said = words);
  }

  // Sections come and go as trials end: a fold or a link is known by its section, and its place in there.
  function places(root, selector) {
    const count = new Map();
    return [...root.querySelectorAll(selector)].map((node) => {
      const section = node.closest("section, nav")?.id || "", at = count.get(section) || 0;
      count.set(section, at + 1);
      return [`${section} ${at}`, node];
    });
  }
  const FOCUSABLE = "a, summary, [tabindex]";

  async function refresh() {
    const reply = await fetch("report", { headers, cache: "no-store" });
    if (!reply.ok) return;
    const fresh = new DOMParser().parseFromString(await reply.text(), "text/html");
    const old = document.querySelector("main"), top = (section) => section.getBoundingClientRect().top;
    // What is being read stays where it is on the screen, whatever grows above it.
    const read = [...old.querySelectorAll("section[id]")].find((section) => section.getBoundingClientRect().bottom > 60);
    const readAt = read && top(read) < innerHeight ? top(read) : null;
    const open = new Map(places(old, "details").map(([key, fold]) => [key, fold.open]));
    const focused = places(old, FOCUSABLE).find(([, node]) => node === document.activeElement)?.[0];
    for (const name of [".mast", "main", "footer"]) {
      const node = fresh.querySelector(name);
      if (node) document.querySelector(name).replaceWith(document.adoptNode(node));
    }
    const main = document.querySelector("main");
    for (const [key, fold] of places(main, "details")) if (open.has(key)) fold.open = open.get(key);
    if (focused) new Map(places(main, FOCUSABLE)).get(focused)?.focus({ preventScroll: true });
    const again = readAt !== null && document.getElementById(read.id);
    if (again) scrollBy({ top: top(again) - readAt, behavior: "instant" });
    version = reply.headers.get("X-Spectune-Version") || version;
    panel.dataset.version = version;
  }

  async function look() {
    clearTimeout(timer);
    let wait = EVERY_MS;
    try {
      const reply = await fetch("state", { headers, cache: "no-store", signal: AbortSignal.timeout(20000) });
      if (!reply.ok) throw new Error((await reply.text()).trim());
      const state = await reply.json();
      answered = Date.now();
      put($("live-alert"), "");
      show(state);
      if (state.version && state.version !== version) await refresh();
      if (!state.can_abort) wait = SLOW_MS;
    } catch (error) {
      panel.dataset.state = "silent";
      put($("live-alert"), `No answer from spectune watch for ${duration((Date.now() - answered) / 1000)}: ${error.message}. The study is not affected; start spectune watch again and open the address it prints.`);
      wait = SLOW_MS;
    }
    if (!document.hidden) timer = setTimeout(look, wait);
  }

  function ask(heading, text, trialId) {
    put($("dialog-title"), heading);
    put($("dialog-text"), text);
    wanted = trialId;
    dialog.showModal();
    $("dialog-no").focus();
  }

  async function abort() {
    dialog.close();
    try {
      const reply = await fetch("abort", { method: "POST", headers, body: JSON.stringify({ trial_id: wanted }) });
      if (!reply.ok) put($("live-alert"), (await reply.text()).trim());
    } catch (error) {
      put($("live-alert"), `Could not ask: ${error.message}`);
    }
    look();
  }

  $("abort-run").addEventListener("click", () => {
    if ($("abort-run").getAttribute("aria-disabled") === "true") return;
    ask("Stop the run?",
      "The spectune that runs this study stops its server, proves that it is gone, and ends. What was measured is kept, and " +
      "spectune run goes on from there.", null);
  });
  $("dialog-no").addEventListener("click", () => dialog.close());
  $("dialog-yes").addEventListener("click", abort);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  look();
})();
