-- How the functions of schema holdfast are called. Prepared once for each connection.

-- name: lease_take
select fence, again from holdfast.lease_take(
    $1::text, $2::text, $3::float8, $4::bool, $5::int4, $6::float8, $7::float8, $8::text, $9::text, $10::text,
    $11::int4, $12::text)

-- name: lease_release
select was_ours, heir, heir_fence from holdfast.lease_release($1::text, $2::text, $3::int4, $4::float8)

-- name: lease_extend
select number from holdfast.lease_extend($1::text[], $2::text[], $3::float8[], $4::int4) as number

-- name: lease_detach
select holdfast.lease_detach($1::text, $2::text, $3::float8)

-- name: lease_rotate
select holdfast.lease_rotate(
    $1::text, $2::text, $3::text, $4::float8, $5::int4, $6::text, $7::text, $8::int4, $9::text)

-- name: lease_evict
select holdfast.lease_evict($1::text, $2::float8)

-- name: lease_holders
select l.name, coalesce(l.owner, l.holder), l.pid, l.host, extract(epoch from l.since), l.note, l.fence, l.mailbox,
       (select count(*) from holdfast.lease_waiter w where w.name = l.name and w.stale_at > clock_timestamp())
from holdfast.lease l
where l.expires_at > clock_timestamp() and ($1::text is null or l.name = $1)
order by l.name

-- name: lease_sweep
select holdfast.lease_sweep($1::float8)

-- name: open_mailbox
select pg_try_advisory_lock(97, $1::int4)
