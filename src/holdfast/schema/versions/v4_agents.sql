-- Coding agents: what their hooks reported (the inbox), and what follows from it. The rules that must never be broken
-- are kept by the database itself: one agent for a session, one open command for an agent, no turn and no event twice.

create table holdfast.project (
    id bigint generated always as identity primary key,
    tenant text not null,
    path text not null,
    created_at timestamptz not null default now(),
    unique (tenant, path)
);

create table holdfast.agent (
    id bigint generated always as identity primary key,
    tenant text not null,
    session_id text not null,
    project_id bigint references holdfast.project,
    cwd text,
    transcript_path text,
    model text,
    source text,                -- how the session began: startup, resume, clear, compact
    permission_mode text,       -- as of its last event that told, like the next
    effort text,
    client_version text,        -- from its transcript, whenever that is read, like the next
    git_branch text,
    registered_at timestamptz,  -- null: heard of, but its SessionStart was not seen
    first_seen_at timestamptz not null default now(),
    last_seen_at timestamptz not null default now(),
    ended_at timestamptz,
    end_reason text,
    unique (tenant, session_id)
);
comment on table holdfast.agent is 'One session of a coding agent. Changed only under its lock (1, id).';

create table holdfast.command (
    id bigint generated always as identity primary key,
    agent_id bigint not null references holdfast.agent,
    state text not null check (state in ('COMMANDED', 'PROCESSING', 'AWAITING_INPUT', 'COMPLETE')),
    prompt_id text,
    waits_for text,             -- while AWAITING_INPUT: prompt, tool, permission, notification
    waits_for_tool_use text,    -- which tool's question it is
    opened_at timestamptz not null default now(),
    changed_at timestamptz not null default now(),
    completed_at timestamptz,
    check ((state = 'COMPLETE') = (completed_at is not null)),
    check (state = 'AWAITING_INPUT' or (waits_for is null and waits_for_tool_use is null))
);
create unique index command_one_open on holdfast.command (agent_id) where state <> 'COMPLETE';
create index command_of_agent on holdfast.command (agent_id, id);

create table holdfast.event (
    id bigint generated always as identity primary key,
    agent_id bigint not null references holdfast.agent,
    number bigint not null check (number > 0),  -- order of arrival in its session, without a gap
    name text not null,
    payload json not null,      -- json, not jsonb: as it came, with what jsonb cannot hold
    identity text,              -- what tells it from any other, if its own fields do
    delivery_id text,           -- the shim's
    digest bytea not null,      -- of the body, for those with neither
    late boolean not null default false,  -- came from a spool
    status text not null default 'pending' check (status in ('pending', 'done', 'set_aside')),
    received_at timestamptz not null default clock_timestamp(),
    processed_at timestamptz,
    processed_in bigint,        -- by which transaction: those who follow along go by it, since clocks are no order
    effect text,                -- what came of it
    failures smallint not null default 0,
    error text,
    retry_at timestamptz,
    unique (agent_id, number),
    check ((status = 'pending') = (processed_at is null))
);
comment on table holdfast.event is 'The inbox: every event of every agent, stored before it is answered.';
create unique index event_identity on holdfast.event (agent_id, identity) where identity is not null;
create unique index event_delivery on holdfast.event (agent_id, delivery_id) where delivery_id is not null;
create index event_digest on holdfast.event (agent_id, digest, received_at) where identity is null and delivery_id is null;
create index event_pending on holdfast.event (agent_id, number) where status = 'pending';
create index event_feed on holdfast.event (processed_in, id) where processed_in is not null;
create index event_set_aside on holdfast.event (id) where status = 'set_aside';

create table holdfast.turn (
    id bigint generated always as identity primary key,
    agent_id bigint not null references holdfast.agent,
    command_id bigint not null references holdfast.command,
    number bigint not null check (number > 0),  -- order in its session
    actor text not null check (actor in ('USER', 'AGENT')),
    intent text not null
        check (intent in ('COMMAND', 'ANSWER', 'QUESTION', 'COMPLETION', 'PROGRESS', 'END_OF_COMMAND')),
    source text not null,       -- what it was made from: the same never makes a second one
    text text,
    tool_name text,
    event_id bigint references holdfast.event,
    created_at timestamptz not null default now(),
    unique (agent_id, number),
    unique (agent_id, source)
);
create index turn_of_command on holdfast.turn (command_id, id);

create table holdfast.deferred_stop (
    id bigint generated always as identity primary key,
    agent_id bigint not null references holdfast.agent,
    command_id bigint not null references holdfast.command,
    event_id bigint not null unique references holdfast.event,
    tries smallint not null default 0,
    due_at timestamptz not null default now()
);
comment on table holdfast.deferred_stop is 'Stops whose last message was not in the transcript yet. Done: deleted.';
create index deferred_stop_due on holdfast.deferred_stop (due_at);

create table holdfast.outbox (
    id bigint generated always as identity primary key,  -- the order of an agent's messages
    agent_id bigint not null references holdfast.agent,
    kind text not null check (kind in ('awaiting_input', 'complete', 'ended')),
    source text not null,       -- what asked for it: the same asks once
    key uuid not null default gen_random_uuid(),  -- by which its receiver knows it again, whatever database it is from
    payload json not null,
    status text not null default 'waiting' check (status in ('waiting', 'done', 'set_aside')),
    due_at timestamptz not null default clock_timestamp(),  -- whoever takes it moves this ahead: that is its lease
    attempts smallint not null default 0,  -- begun ones, so those of a process that died count
    error text,                 -- of the last one
    created_at timestamptz not null default clock_timestamp(),
    settled_at timestamptz,
    unique (agent_id, kind, source),
    check ((status = 'waiting') = (settled_at is null))
);
comment on table holdfast.outbox is 'What is slow, and is done after the transaction that asked for it, outside the lock.';
create index outbox_waiting on holdfast.outbox (agent_id, id) where status = 'waiting';
create index outbox_set_aside on holdfast.outbox (id) where status = 'set_aside';

create table holdfast.token (
    digest bytea primary key,   -- of the token; the token itself is nowhere
    tenant text not null,
    scopes text[] not null check (scopes <@ array['hook', 'read', 'admin', 'page']),
    note text,
    created_at timestamptz not null default now(),
    expires_at timestamptz,
    name text,                  -- of those that were made by hand
    revoked_at timestamptz      -- it stays, so that no file in which it is left can bring it back
);
create unique index token_name on holdfast.token (name) where revoked_at is null;

-- Stores one event and says which number it has. Whoever stores for a session does so one after the other, up to the
-- end of the transaction: when number n can be seen, all before it can. Processing never takes this lock.
create function holdfast.store_event(
    p_tenant text, p_session_id text, p_name text, p_payload json, p_identity text, p_delivery_id text, p_digest bytea,
    p_late boolean,
    out event_id bigint, out agent_id bigint, out number bigint, out duplicate boolean
) language plpgsql volatile as $$
#variable_conflict use_column
begin
    perform pg_advisory_xact_lock(hashtextextended(p_tenant || E'\n' || p_session_id, 20050));
    -- A bare row, if there is none. What the event means for it is decided later, under the agent's lock.
    select a.id into store_event.agent_id from holdfast.agent a
        where a.tenant = p_tenant and a.session_id = p_session_id;
    if store_event.agent_id is null then
        insert into holdfast.agent (tenant, session_id) values (p_tenant, p_session_id)
            returning id into store_event.agent_id;
    end if;
    duplicate := true;
    if p_delivery_id is not null then
        select e.id, e.number into store_event.event_id, store_event.number from holdfast.event e
            where e.agent_id = store_event.agent_id and e.delivery_id = p_delivery_id;
    end if;
    if store_event.event_id is null and p_identity is not null then
        select e.id, e.number into store_event.event_id, store_event.number from holdfast.event e
            where e.agent_id = store_event.agent_id and e.identity = p_identity;
    end if;
    if store_event.event_id is null and p_identity is null and p_delivery_id is null then
        select e.id, e.number into store_event.event_id, store_event.number from holdfast.event e
            where e.agent_id = store_event.agent_id and e.digest = p_digest
                and e.identity is null and e.delivery_id is null
                and e.received_at > clock_timestamp() - interval '10 s'
            order by e.number desc limit 1;
    end if;
    if store_event.event_id is not null then
        return;
    end if;
    duplicate := false;
    select coalesce(max(e.number), 0) + 1 into store_event.number from holdfast.event e
        where e.agent_id = store_event.agent_id;
    insert into holdfast.event (agent_id, number, name, payload, identity, delivery_id, digest, late)
        values (store_event.agent_id, store_event.number, p_name, p_payload, p_identity, p_delivery_id, p_digest, p_late)
        returning id into store_event.event_id;
end $$;

-- Deletes agents that were not heard of for so long, with all that is theirs. Returns how many. Not those that somebody
-- stores for or works on right now, nor those with something left to do: they are for the next time.
create function holdfast.forget_agents(p_seconds double precision, p_most integer) returns integer
language plpgsql volatile as $$
declare
    old record;
    forgotten integer := 0;
begin
    for old in
        select id, tenant, session_id from holdfast.agent
        where last_seen_at < now() - make_interval(secs => p_seconds)
            and not exists (select from holdfast.event e where e.agent_id = agent.id and e.status = 'pending')
            and not exists (select from holdfast.outbox o where o.agent_id = agent.id and o.status = 'waiting')
        order by last_seen_at limit p_most for update skip locked
    loop
        -- As in store_event: whoever stores an event now waits, finds no agent then, and makes a new one.
        if not pg_try_advisory_xact_lock(hashtextextended(old.tenant || E'\n' || old.session_id, 20050)) then
            continue;
        end if;
        -- Looked at again: one may have been stored before we had that lock.
        if exists (select from holdfast.event e where e.agent_id = old.id and e.status = 'pending') then
            continue;
        end if;
        delete from holdfast.deferred_stop where agent_id = old.id;
        delete from holdfast.outbox where agent_id = old.id;
        delete from holdfast.turn where agent_id = old.id;
        delete from holdfast.event where agent_id = old.id;
        delete from holdfast.command where agent_id = old.id;
        delete from holdfast.agent where id = old.id;
        forgotten := forgotten + 1;
    end loop;
    return forgotten;
end $$;
