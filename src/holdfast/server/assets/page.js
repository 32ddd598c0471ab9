// Agents by state. Everything that comes from agents is set as text, never as markup.
"use strict";

const STATES = [
  { state: "AWAITING_INPUT", mark: "?", title: "Waiting for you", counted: "waiting for you" },
  { state: "PROCESSING", mark: "▶", title: "At work", counted: "at work" },
  { state: "COMMANDED", mark: "▷", title: "Commanded, nothing done yet", counted: "just commanded" },
  { state: "IDLE", mark: "✓", title: "Idle", counted: "idle" },
  { state: "ENDED", mark: "■", title: "Ended", folded: true },
];
const BUSY = new Set(["PROCESSING", "COMMANDED"]);
const MOST = 500;
const LONG = 240; // characters
const QUIET = 10 * 60; // seconds without a word from an agent at work, after which that is worth a look
const AGAIN = 3000; // milliseconds

const byId = (id) => document.getElementById(id);

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// What stays as it was is left alone: a selection, the focus and a screen reader are not disturbed.
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function setChildren(node, children) {
  const wanted = new Set(children);
  for (const child of [...node.children]) if (!wanted.has(child)) child.remove();
  children.forEach((child, at) => {
    if (node.children[at] !== child) node.insertBefore(child, node.children[at] ?? null);
  });
}

const secondsSince = (moment) => Math.max(0, Math.round((Date.now() - new Date(moment)) / 1000));

function span(seconds) {
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d`;
}

function words(name) {
  const made = element("p", `words ${name}`);
  made.dir = "auto";
  return made;
}

function setWords(node, text) {
  node.hidden = !text;
  setText(node, text ?? "");
  if ((text ?? "").length > LONG) node.tabIndex = 0;
  else node.removeAttribute("tabindex");
}

function lastWords({ state, command }) {
  if (state !== "AWAITING_INPUT") return command?.said && `It said: ${command.said}`;
  const asked = command.said ?? "your input";
  if (command.waits_for === "tool") return `It asks: ${asked}`;
  if (command.waits_for === "prompt") return `It asks: ${asked.trim().split(/\n\s*\n/).pop()}`; // it ends in the question
  return `It waits for: ${asked}`;
}

class Card {
  constructor() {
    this.item = element("li");
    this.project = element("strong");
    this.project.dir = "auto";
    this.since = element("time", "faint");
    this.prompt = words("prompt");
    this.said = words("said");
    this.warning = element("p", "warning");
    this.foot = element("p", "faint");
    const head = element("p", "head");
    head.append(this.project, this.since);
    this.item.append(head, this.prompt, this.said, this.warning, this.foot);
  }

  show(agent) {
    this.agent = agent;
    const { command, context } = agent;
    if (this.item.className !== agent.state) this.item.className = agent.state;
    const folder = context.project ?? context.cwd;
    setText(this.project, folder?.split("/").filter(Boolean).pop() ?? folder ?? "unknown folder");
    this.project.title = folder ?? "";
    setWords(this.prompt, command ? (command.prompt ?? "(something it went on with by itself)") : "(nothing asked yet)");
    setWords(this.said, lastWords(agent));
    this.since.dateTime = agent.since;
    this.since.title = new Date(agent.since).toLocaleString();
    this.tick();
  }

  tick() {
    const { agent } = this;
    const quiet = secondsSince(agent.last_seen_at);
    const ended = agent.state === "ENDED";
    setText(this.since, ended ? `ended ${span(secondsSince(agent.since))} ago` : `for ${span(secondsSince(agent.since))}`);
    this.warning.hidden = !(BUSY.has(agent.state) && quiet > QUIET);
    setText(this.warning, this.warning.hidden ? "" : `⚠ nothing heard for ${span(quiet)}: has it been killed?`);
    const foot = [
      agent.context.cwd, agent.context.model, `session ${agent.session_id.slice(0, 8)}`,
      ended ? agent.end_reason : `heard of ${span(quiet)} ago`,
    ];
    setText(this.foot, foot.filter(Boolean).join(" · "));
  }
}

class Section {
  constructor({ state, mark, title, folded }) {
    this.state = state;
    this.title = title;
    this.whole = element(folded ? "details" : "section");
    this.heading = element("span");
    const sign = element("span", "", `${mark} `);
    sign.setAttribute("aria-hidden", "true");
    const top = element(folded ? "summary" : "h2");
    top.append(sign, this.heading);
    this.list = element("ul");
    this.whole.append(top, this.list);
  }

  show(agents) {
    this.whole.hidden = !agents.length;
    setText(this.heading, `${this.title} (${agents.length})`);
    setChildren(this.list, agents.map((agent) => cardOf(agent).item));
  }
}

const sections = STATES.map((state) => new Section(state));
const cards = new Map();
byId("agents").append(...sections.map((section) => section.whole));

function cardOf(agent) {
  if (!cards.has(agent.id)) cards.set(agent.id, new Card());
  const card = cards.get(agent.id);
  card.show(agent);
  return card;
}

function show(agents) {
  const there = new Set(agents.map((agent) => agent.id));
  for (const id of cards.keys()) if (!there.has(id)) cards.delete(id);
  for (const section of sections) {
    // Who waits longest comes first; elsewhere what is newest does.
    const sign = section.state === "AWAITING_INPUT" ? 1 : -1;
    const here = agents.filter((agent) => agent.state === section.state);
    section.show(here.sort((one, other) => sign * (new Date(one.since) - new Date(other.since))));
  }
  const counts = STATES.filter(({ counted }) => counted).map(({ state, counted }) =>
    [agents.filter((agent) => agent.state === state).length, counted]);
  const told = counts.filter(([count]) => count).map(([count, counted]) => `${count} ${counted}`);
  if (agents.length >= MOST) told.push(`only the newest ${MOST} are shown`);
  setText(byId("summary"), told.join(", ") || (agents.length ? "none alive" : ""));
  document.title = counts[0][0] ? `(${counts[0][0]}) Holdfast` : "Holdfast";
  byId("none").hidden = agents.length > 0;
}

let underWay = false;
let onceMore = false;

async function refresh() {
  if (underWay) {
    onceMore = true;
    return;
  }
  underWay = true;
  try {
    const answer = await fetch(`/api/agents?most=${MOST}`);
    if (answer.status === 401) location.reload(); // to the page that says how to get in
    else if (answer.ok) show((await answer.json()).agents);
  } catch {
    // The server is away; it is asked again once it is back.
  } finally {
    underWay = false;
    if (onceMore) {
      onceMore = false;
      setTimeout(refresh, 200);
    }
  }
}

function connected(live) {
  setText(byId("connection"), live ? "● live" : "⚠ connection lost, trying again …");
  byId("connection").classList.toggle("lost", !live);
  document.body.classList.toggle("lost", !live);
}

function follow() {
  const changes = new EventSource("/api/events");
  changes.addEventListener("change", refresh);
  changes.onopen = () => {
    connected(true);
    refresh();
  };
  changes.onerror = () => {
    connected(false);
    if (changes.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
    refresh(); // was it that we are not known any more?
    setTimeout(follow, AGAIN);
  };
}

follow();
setInterval(refresh, 30000);
setInterval(() => cards.forEach((card) => card.tick()), 1000);
