-- What an instance says to the database. statement_timestamp() and not clock_timestamp() in conditions: an index serves
-- only what stays the same during the statement. A lease is counted from clock_timestamp(), so that waiting in between
-- does not shorten it.

-- name: look
select statement_timestamp() as now, least(
    (select next_run_at from holdfast.scheduled_action
        where namespace = :namespace and status = 'active' and next_run_at is not null
        order by next_run_at limit 1),
    (select r.due_at from holdfast.scheduled_run r join holdfast.scheduled_action a on a.id = r.action_id
        where r.namespace = :namespace and r.state = 'pending' and a.status <> 'paused'
        order by r.due_at limit 1),
    (select lease_until from holdfast.scheduled_run
        where namespace = :namespace and state = 'running'
        order by lease_until limit 1)
) as due

-- name: try_lock
select pg_try_advisory_xact_lock(cast(:namespace as int4), cast(:action_id as int4)) as acquired

-- Three times the same two steps: lock what is due and free, passing over what others are at; then, in a statement of
-- its own, whose snapshot is younger than the locks, read it again and change it.

-- name: lock_lost_runs
with lost as materialized (
    select id, action_id from holdfast.scheduled_run
    where namespace = :namespace and state = 'running' and lease_until < statement_timestamp()
    order by lease_until limit 100 for update skip locked
)
select id from lost where pg_try_advisory_xact_lock(cast(:namespace as int4), action_id)

-- name: settle_lost_runs
with lost as (
    select r.id, a.recovery = 'at_least_once' and r.recoveries < :max_recoveries as again, a.recovery, a.action_type
    from holdfast.scheduled_run r join holdfast.scheduled_action a on a.id = r.action_id
    where r.id = any(cast(:ids as bigint[]))
)
update holdfast.scheduled_run r set
    state = case when again then 'pending' else 'failed' end,
    due_at = case when again then statement_timestamp() end,
    recoveries = r.recoveries + 1,
    lease_until = null,
    finished_at = case when not again then statement_timestamp() end,
    duration_seconds = case when not again then extract(epoch from statement_timestamp() - r.started_at) end,
    error = 'instance ' || r.instance || ' stopped renewing its lease in attempt ' || r.attempt || case
        when again then '; given to another'
        when lost.recovery = 'at_least_once' then '; so did others before it'
        else '; not run again: at most once' end
from lost
where r.id = lost.id and r.state = 'running' and r.lease_until < statement_timestamp()
returning r.state, lost.action_type

-- name: lock_pending_runs
with due as materialized (
    select r.id, r.action_id from holdfast.scheduled_run r join holdfast.scheduled_action a on a.id = r.action_id
    where r.namespace = :namespace and r.state = 'pending' and r.due_at <= statement_timestamp()
        and a.status <> 'paused'
    order by r.due_at limit :room for update of r skip locked
)
select id from due where pg_try_advisory_xact_lock(cast(:namespace as int4), action_id)

-- name: take_pending_runs
update holdfast.scheduled_run r set
    state = 'running',
    attempt = r.attempt + 1,
    instance = :instance,
    lease_until = clock_timestamp() + make_interval(secs => :lease),
    started_at = clock_timestamp(),
    due_at = null
from holdfast.scheduled_action a
where r.id = any(cast(:ids as bigint[])) and r.state = 'pending' and a.id = r.action_id
    -- An action that allowed two runs when these came, and does not any more: the oldest goes first.
    and (a.allow_concurrent or not exists (
        select from holdfast.scheduled_run other
        where other.action_id = r.action_id and other.id <> r.id
            and (other.state = 'running' or other.state = 'pending' and other.id < r.id)
    ))
returning r.*

-- name: postpone_pending_runs
update holdfast.scheduled_run set due_at = statement_timestamp() + interval '1 second'
where id = any(cast(:ids as bigint[])) and state = 'pending'

-- name: lock_due_actions
with due as materialized (
    select id from holdfast.scheduled_action
    where namespace = :namespace and status = 'active' and next_run_at <= statement_timestamp()
    order by next_run_at limit :room for update skip locked
)
select id from due where pg_try_advisory_xact_lock(cast(:namespace as int4), id)

-- name: read_actions
select a.*, statement_timestamp() as now, exists (
    select from holdfast.scheduled_run r where r.action_id = a.id and r.state in ('pending', 'running')
) as unfinished
from holdfast.scheduled_action a where a.id = any(cast(:ids as int4[])) and a.namespace = :namespace

-- name: insert_runs
insert into holdfast.scheduled_run (
    namespace, action_id, scheduled_for, trigger, payload, idempotency_key, exclusive, state, attempt, recoveries,
    due_at, instance, lease_until, started_at, finished_at, error)
select :namespace, n.action_id, coalesce(n.scheduled_for, clock_timestamp()), n.trigger, n.payload,
    gen_random_uuid(), n.exclusive, n.state,
    case when n.state = 'running' then 1 else 0 end,
    0,
    case when n.state = 'pending' then clock_timestamp() end,
    case when n.state = 'running' then :instance end,
    case when n.state = 'running' then clock_timestamp() + make_interval(secs => :lease) end,
    case when n.state = 'running' then clock_timestamp() end,
    case when n.state = 'skipped' then clock_timestamp() end,
    n.error
from jsonb_to_recordset(cast(:new as jsonb)) as n(
    action_id int4, scheduled_for timestamptz, trigger text, payload jsonb, exclusive boolean, state text, error text)
on conflict do nothing
returning *

-- name: advance_actions
update holdfast.scheduled_action a set
    status = n.status,
    execution_count = n.execution_count,
    next_occurrence = n.next_occurrence,
    next_run_at = n.next_run_at,
    last_run_at = n.last_run_at
from jsonb_to_recordset(cast(:changed as jsonb)) as n(
    id int4, status text, execution_count int8, next_occurrence timestamptz, next_run_at timestamptz,
    last_run_at timestamptz)
where a.id = n.id

-- Rows are locked in the order of their ids: an instance renews and ends runs at the same time, and one deletes them.

-- name: renew
with ours as materialized (
    select r.id from holdfast.scheduled_run r
        join unnest(cast(:ids as bigint[]), cast(:attempts as int4[])) as named(id, attempt) using (id, attempt)
    where r.state = 'running' and r.instance = :instance
    order by r.id for update of r
)
update holdfast.scheduled_run r set lease_until = clock_timestamp() + make_interval(secs => :lease)
from ours where r.id = ours.id
returning r.id, r.attempt

-- name: finish
with ended as materialized (
    select e.*, r.id from jsonb_to_recordset(cast(:endings as jsonb)) as e(
        run_id int8, attempt int4, state text, duration float8, error text, result text, retry_in float8,
        handed_back boolean)
        join holdfast.scheduled_run r on r.id = e.run_id and r.attempt = e.attempt
    where r.state = 'running'
    order by r.id for update of r
)
update holdfast.scheduled_run r set
    state = case when e.retry_in is not null or e.handed_back then 'pending' else e.state end,
    due_at = clock_timestamp() + make_interval(secs => case when e.handed_back then 0 else e.retry_in end),
    recoveries = r.recoveries + e.handed_back::int4,
    lease_until = null,
    finished_at = case when e.retry_in is null and not e.handed_back then clock_timestamp() end,
    duration_seconds = e.duration,
    error = e.error,
    result = cast(e.result as jsonb)
from ended e where r.id = e.id
returning r.id, r.attempt

-- name: announce
select pg_notify('holdfast_scheduler', cast(:namespace as text))

-- name: forget_runs
delete from holdfast.scheduled_run where id in (
    select id from holdfast.scheduled_run
    where namespace = :namespace and finished_at < statement_timestamp() - make_interval(secs => :age)
    order by finished_at limit 1000 for update skip locked
)
