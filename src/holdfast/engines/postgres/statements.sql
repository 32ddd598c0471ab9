-- Every statement that a lock connection runs. Read by statements.py; prepared once for each connection.

-- name: try_pair
select pg_try_advisory_lock($1::int4, $2::int4)

-- name: try_hash
select pg_try_advisory_lock($1::int8)

-- name: unlock_pair
select pg_advisory_unlock($1::int4, $2::int4)

-- name: unlock_hash
select pg_advisory_unlock($1::int8)

-- name: try_many
-- A null class id stands for a key in the bigint form.
select case when c is null then pg_try_advisory_lock(o) else pg_try_advisory_lock(c::int4, o::int4) end
from unnest($1::int8[], $2::int8[]) as wanted (c, o)

-- name: unlock_many
select case when c is null then pg_advisory_unlock(o) else pg_advisory_unlock(c::int4, o::int4) end
from unnest($1::int8[], $2::int8[]) as held (c, o)

-- name: wait_pair
-- The limit is in force for this statement and gone after it.
select set_config('lock_timeout', $3, true), pg_advisory_lock($1::int4, $2::int4)

-- name: wait_hash
select set_config('lock_timeout', $2, true), pg_advisory_lock($1::int8)

-- With a fence: a number instead of true, null instead of false. It is minted when the lock is held, not before.

-- name: try_pair_fenced
select case when pg_try_advisory_lock($1::int4, $2::int4) then holdfast.next_fence() end

-- name: try_hash_fenced
select case when pg_try_advisory_lock($1::int8) then holdfast.next_fence() end

-- name: try_many_fenced
select case when case when c is null then pg_try_advisory_lock(o) else pg_try_advisory_lock(c::int4, o::int4) end
    then holdfast.next_fence() end
from unnest($1::int8[], $2::int8[]) as wanted (c, o)

-- name: wait_pair_fenced
with granted as materialized (select set_config('lock_timeout', $3, true), pg_advisory_lock($1::int4, $2::int4))
select holdfast.next_fence() from granted

-- name: wait_hash_fenced
with granted as materialized (select set_config('lock_timeout', $2, true), pg_advisory_lock($1::int8))
select holdfast.next_fence() from granted

-- name: unlock_all
select pg_advisory_unlock_all()

-- name: cancel
select pg_cancel_backend($1::int4)

-- name: prepare_session
-- What the role or the database may have set would end a lock connection that is idle, as most are most of the time.
-- The server's patience with a silent peer is longer than the client's: a holder knows of its loss before the lock is
-- given to another. Leases must see what was committed a moment ago, and be written.
select set_config(name, case name
    when 'default_transaction_isolation' then 'read committed'
    when 'default_transaction_read_only' then 'off'
    when 'client_connection_check_interval' then '1000'
    when 'tcp_keepalives_idle' then '5'
    when 'tcp_keepalives_interval' then '2'
    when 'tcp_keepalives_count' then '3'
    when 'tcp_user_timeout' then '10000'
    else '0' end, false)
from pg_settings
where name in (
    'statement_timeout', 'lock_timeout', 'idle_session_timeout', 'idle_in_transaction_session_timeout',
    'transaction_timeout', 'client_connection_check_interval', 'tcp_keepalives_idle', 'tcp_keepalives_interval',
    'tcp_keepalives_count', 'tcp_user_timeout', 'default_transaction_isolation', 'default_transaction_read_only')

-- name: identify
select pg_backend_pid(), pg_is_in_recovery(), (select system_identifier from pg_control_system()),
       (select oid from pg_database where datname = current_database())

-- name: listen
listen holdfast_evict

-- name: ask_to_evict
select pg_notify('holdfast_evict', $1)

-- name: terminate
select pg_terminate_backend($1::int4)

-- name: locks
select l.pid, l.classid::int8, l.objid::int8, l.objsubid, l.granted, a.application_name,
       extract(epoch from a.backend_start), coalesce(a.client_hostname, a.client_addr::text, '')
from pg_locks l left join pg_stat_activity a on a.pid = l.pid
where l.locktype = 'advisory' and l.database = (select oid from pg_database where datname = current_database())
order by l.waitstart nulls first, l.pid
