// Agents by state. Everything that comes from agents is set as text, never as markup.
"use strict";

const STATES = [
  ["AWAITING_INPUT", "Waiting for you"],
  ["PROCESSING", "At work"],
  ["COMMANDED", "Asked"],
  ["IDLE", "Idle"],
  ["ENDED", "Ended"],
];

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function ago(moment) {
  const seconds = Math.max(0, Math.round((Date.now() - new Date(moment)) / 1000));
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min ago`;
  return new Date(moment).toLocaleString();
}

function card(agent) {
  const item = element("li", agent.state);
  item.append(element("p", "", agent.command?.prompt ?? "(nothing asked yet)"));
  const where = agent.context.project ?? agent.session_id;
  item.append(element("p", "faint", `${where} · heard of ${ago(agent.last_seen_at)}`));
  return item;
}

function show(agents) {
  const sections = STATES.flatMap(([state, title]) => {
    const here = agents.filter((agent) => agent.state === state);
    if (!here.length) return [];
    const section = element("section");
    const list = element("ul");
    list.append(...here.map(card));
    section.append(element("h2", "", `${title} (${here.length})`), list);
    return [section];
  });
  document.getElementById("agents").replaceChildren(...sections);
  document.getElementById("none").hidden = agents.length > 0;
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
    const answer = await fetch("/api/agents");
    if (answer.status === 401) location.reload();
    if (answer.ok) show((await answer.json()).agents);
  } finally {
    underWay = false;
    if (onceMore) {
      onceMore = false;
      setTimeout(refresh, 200);
    }
  }
}

const connection = document.getElementById("connection");
const changes = new EventSource("/api/events");
changes.addEventListener("change", refresh);
changes.onopen = () => { connection.textContent = "live"; refresh(); };
changes.onerror = () => { connection.textContent = "connection lost, trying again …"; };
setInterval(refresh, 30000);
