-- Leases. Every operation is one call of one function, which takes the lock of the name first: what happens to one name
-- happens in one order, and the fence is minted in it. The database's clock alone says when a lease ends.

create table holdfast.lease (
    name text primary key,
    token text not null,
    fence bigint not null,
    expires_at timestamptz not null,
    taken_up boolean not null,  -- false: offered to a waiter for a short while
    mailbox integer,            -- which process to tell; null: nobody is in charge
    owner text,                 -- chosen by the caller
    holder text not null,       -- from here on: for operators
    host text not null,
    pid integer not null,
    note text,
    since timestamptz not null
) with (fillfactor = 70, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
comment on table holdfast.lease is 'Locks that are held. A lock that is free has no row.';

create table holdfast.lease_waiter (
    name text not null,
    arrival bigint generated always as identity,
    token text not null unique,
    ttl double precision not null,
    mailbox integer,
    passed_over boolean not null default false,  -- did not take up an offer; until it asks again
    stale_at timestamptz not null,               -- when its process is taken for dead
    owner text,
    holder text not null,
    host text not null,
    pid integer not null,
    note text,
    primary key (name, arrival)
) with (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
comment on table holdfast.lease_waiter is 'Who waits for a lock, in order of arrival.';

create function holdfast.lease_lock(p_name text) returns void language sql volatile as $$
    select pg_advisory_xact_lock(hashtextextended(p_name, 20010))
$$;

create function holdfast.lease_channel(p_mailbox integer) returns text language sql immutable as $$
    select 'holdfast_lease_' || p_mailbox
$$;

-- A process listens on a connection that holds the session lock of its mailbox. Whoever can get that lock knows that
-- nobody listens any more: at once, whoever asks, and never mistaken by a process id that is used again.
create function holdfast.mailbox_lives(p_mailbox integer) returns boolean language sql volatile as $$
    select p_mailbox is not null and not pg_try_advisory_xact_lock_shared(97, p_mailbox)
$$;

-- Tells the process of a holder, unless nobody is in charge, that its grant of that fence has gone.
create function holdfast.lease_tell(p_lease holdfast.lease, p_what text) returns void language plpgsql as $$
begin
    if p_lease.mailbox is not null then
        perform pg_notify(holdfast.lease_channel(p_lease.mailbox),
            p_what || ' ' || split_part(p_lease.token, '-', 1) || ' ' || p_lease.fence);
    end if;
end $$;

-- The lock was offered for a while: the next waiter of another process looks again when it is over.
create function holdfast.lease_watch(p_name text, p_token text, p_mailbox integer, p_seconds double precision)
returns void language plpgsql as $$
declare
    v_waiter holdfast.lease_waiter;
begin
    for v_waiter in
        select * from holdfast.lease_waiter w
        where w.name = p_name and w.token <> p_token and not w.passed_over and w.mailbox is distinct from p_mailbox
        order by w.arrival
    loop
        if holdfast.mailbox_lives(v_waiter.mailbox) then
            perform pg_notify(holdfast.lease_channel(v_waiter.mailbox),
                'look_again ' || split_part(v_waiter.token, '-', 1) || ' ' || p_seconds);
            return;
        end if;
    end loop;
end $$;

-- Gives the lock to the first waiter that lives, or frees it. Under the name's lock.
-- For the asker itself, and for waiters of the mailbox that is told in the answer, the grant is complete.
create function holdfast.lease_hand_on(
    p_name text, p_asker text, p_told integer, p_window double precision,
    out heir text, out heir_fence bigint, out complete boolean, out expires timestamptz
) language plpgsql as $$
declare
    v_now timestamptz := clock_timestamp();
    v_waiter holdfast.lease_waiter;
begin
    for v_waiter in select * from holdfast.lease_waiter w where w.name = p_name order by w.arrival loop
        if v_waiter.token = p_asker or v_waiter.mailbox = p_told then
            complete := true;
            exit;
        elsif v_waiter.stale_at <= v_now then
            delete from holdfast.lease_waiter w where w.token = v_waiter.token;
        elsif not v_waiter.passed_over and holdfast.mailbox_lives(v_waiter.mailbox) then
            complete := false;
            exit;
        end if;
    end loop;
    if complete is null then
        delete from holdfast.lease l where l.name = p_name;
        return;
    end if;
    heir := v_waiter.token;
    expires := v_now + make_interval(secs => case when complete then v_waiter.ttl else p_window end);
    insert into holdfast.lease as l
        (name, token, fence, expires_at, taken_up, mailbox, owner, holder, host, pid, note, since)
    values (p_name, heir, holdfast.next_fence(), expires, complete, v_waiter.mailbox, v_waiter.owner,
        v_waiter.holder, v_waiter.host, v_waiter.pid, v_waiter.note, v_now)
    on conflict (name) do update set
        token = excluded.token, fence = excluded.fence, expires_at = excluded.expires_at, taken_up = excluded.taken_up,
        mailbox = excluded.mailbox, owner = excluded.owner, holder = excluded.holder, host = excluded.host,
        pid = excluded.pid, note = excluded.note, since = excluded.since
    returning l.fence into heir_fence;
    if complete then
        delete from holdfast.lease_waiter w where w.token = heir;
    else
        perform pg_notify(holdfast.lease_channel(v_waiter.mailbox), 'offered ' || split_part(heir, '-', 1));
        perform holdfast.lease_watch(p_name, heir, v_waiter.mailbox, p_window);
    end if;
end $$;

create function holdfast.lease_take(
    p_name text, p_token text, p_ttl double precision, p_waits boolean, p_mailbox integer, p_window double precision,
    p_patience double precision, p_owner text, p_holder text, p_host text, p_pid integer, p_note text,
    out fence bigint, out again double precision
) language plpgsql as $$
declare
    v_lease holdfast.lease;
    v_now timestamptz;
    v_given record;
begin
    perform holdfast.lease_lock(p_name);
    -- For update, although the name is locked: an extension does not take that lock, and must be seen.
    select * into v_lease from holdfast.lease l where l.name = p_name for update;
    v_now := clock_timestamp();
    if v_lease.token = p_token then
        -- Asked again since the answer was lost, or an offer is taken up.
        update holdfast.lease l
        set expires_at = v_now + make_interval(secs => p_ttl), taken_up = true, mailbox = p_mailbox
        where l.name = p_name;
        if not v_lease.taken_up then
            delete from holdfast.lease_waiter w where w.token = p_token;
        end if;
        fence := v_lease.fence;
        return;
    end if;
    if v_lease.expires_at > v_now then
        if v_lease.owner = p_owner then
            fence := holdfast.next_fence();
            update holdfast.lease l
            set token = p_token, fence = lease_take.fence, expires_at = v_now + make_interval(secs => p_ttl),
                taken_up = true, mailbox = p_mailbox, holder = p_holder, host = p_host, pid = p_pid, note = p_note,
                since = v_now
            where l.name = p_name;
            delete from holdfast.lease_waiter w where w.token = p_token;
            if v_lease.mailbox is distinct from p_mailbox then  -- else the answer tells
                perform holdfast.lease_tell(v_lease, 'taken_anew');
            end if;
            return;
        end if;
        if not p_waits then
            return;
        end if;
    elsif not exists (select from holdfast.lease_waiter w where w.name = p_name) then
        -- Free, and nobody waits.
        insert into holdfast.lease as l
            (name, token, fence, expires_at, taken_up, mailbox, owner, holder, host, pid, note, since)
        values (p_name, p_token, holdfast.next_fence(), v_now + make_interval(secs => p_ttl), true, p_mailbox,
            p_owner, p_holder, p_host, p_pid, p_note, v_now)
        on conflict (name) do update set
            token = excluded.token, fence = excluded.fence, expires_at = excluded.expires_at,
            taken_up = excluded.taken_up, mailbox = excluded.mailbox, owner = excluded.owner,
            holder = excluded.holder, host = excluded.host, pid = excluded.pid, note = excluded.note,
            since = excluded.since
        returning l.fence into lease_take.fence;
        return;
    end if;
    insert into holdfast.lease_waiter as w
        (name, token, ttl, mailbox, stale_at, owner, holder, host, pid, note)
    values (p_name, p_token, p_ttl, p_mailbox, v_now + make_interval(secs => p_patience), p_owner, p_holder, p_host,
        p_pid, p_note)
    on conflict (token) do update set
        mailbox = excluded.mailbox, stale_at = excluded.stale_at, passed_over = false;
    if v_lease.expires_at > v_now then
        again := extract(epoch from v_lease.expires_at - v_now);
        return;
    end if;
    if not v_lease.taken_up then
        update holdfast.lease_waiter w set passed_over = true where w.token = v_lease.token;
    end if;
    select * into v_given from holdfast.lease_hand_on(p_name, p_token, null, p_window);
    if v_given.heir = p_token then
        fence := v_given.heir_fence;
    elsif p_waits then
        again := extract(epoch from v_given.expires - v_now);
    else
        delete from holdfast.lease_waiter w where w.token = p_token;
    end if;
end $$;

create function holdfast.lease_release(
    p_name text, p_token text, p_mailbox integer, p_window double precision,
    out was_ours boolean, out heir text, out heir_fence bigint
) language plpgsql as $$
declare
    v_lease holdfast.lease;
    v_given record;
begin
    perform holdfast.lease_lock(p_name);
    if not exists (select from holdfast.lease_waiter w where w.name = p_name) then
        delete from holdfast.lease l where l.name = p_name and l.token = p_token
        returning l.expires_at > clock_timestamp() into was_ours;
        was_ours := coalesce(was_ours, false);
        return;
    end if;
    select * into v_lease from holdfast.lease l where l.name = p_name for update;
    was_ours := coalesce(v_lease.token = p_token and v_lease.taken_up and v_lease.expires_at > clock_timestamp(), false);
    if not was_ours then
        delete from holdfast.lease_waiter w where w.token = p_token;
    end if;
    if v_lease.token = p_token then
        select * into v_given from holdfast.lease_hand_on(p_name, null, p_mailbox, p_window);
        if v_given.complete then
            heir := split_part(v_given.heir, '-', 1);
            heir_fence := v_given.heir_fence;
        end if;
    elsif not v_lease.taken_up then
        -- Perhaps the one that goes was to look again.
        perform holdfast.lease_watch(p_name, v_lease.token, v_lease.mailbox,
            greatest(0, extract(epoch from v_lease.expires_at - clock_timestamp())));
    end if;
end $$;

-- Not under the names' locks: a holder's row is its own until it has run out, and the row's lock decides about that.
create function holdfast.lease_extend(p_names text[], p_tokens text[], p_ttls double precision[], p_mailbox integer)
returns setof bigint language sql volatile as $$
    with asked as (
        select a.name, a.token, a.ttl, a.number
        from unnest(p_names, p_tokens, p_ttls) with ordinality as a (name, token, ttl, number)
    ), ours as materialized (
        select l.name, a.ttl, a.number
        from holdfast.lease l join asked a on a.name = l.name and a.token = l.token
        order by l.name
        for update of l
    )
    update holdfast.lease l
    set expires_at = clock_timestamp() + make_interval(secs => ours.ttl), mailbox = p_mailbox
    from ours
    where l.name = ours.name and l.expires_at > clock_timestamp()
    returning ours.number
$$;

create function holdfast.lease_detach(p_name text, p_token text, p_ttl double precision)
returns boolean language sql volatile as $$
    update holdfast.lease l
    set expires_at = clock_timestamp() + make_interval(secs => p_ttl), mailbox = null, holder = 'detached'
    where l.name = p_name and l.token = p_token and l.expires_at > clock_timestamp()
    returning true
$$;

create function holdfast.lease_rotate(
    p_name text, p_old text, p_token text, p_ttl double precision, p_mailbox integer, p_holder text, p_host text,
    p_pid integer, p_note text
) returns bigint language plpgsql as $$
declare
    v_lease holdfast.lease;
    v_now timestamptz;
    v_fence bigint;
begin
    perform holdfast.lease_lock(p_name);
    select * into v_lease from holdfast.lease l where l.name = p_name for update;
    v_now := clock_timestamp();
    if v_lease.token = p_token then
        return v_lease.fence;  -- asked again since the answer was lost
    end if;
    if v_lease.token is distinct from p_old or v_lease.expires_at <= v_now then
        return null;
    end if;
    update holdfast.lease l
    set token = p_token, fence = holdfast.next_fence(), expires_at = v_now + make_interval(secs => p_ttl),
        taken_up = true, mailbox = p_mailbox, holder = p_holder, host = p_host, pid = p_pid, note = p_note, since = v_now
    where l.name = p_name
    returning l.fence into v_fence;
    perform holdfast.lease_tell(v_lease, 'attached');
    return v_fence;
end $$;

create function holdfast.lease_evict(p_name text, p_window double precision) returns boolean language plpgsql as $$
declare
    v_lease holdfast.lease;
    v_held boolean;
begin
    perform holdfast.lease_lock(p_name);
    select * into v_lease from holdfast.lease l where l.name = p_name for update;
    if v_lease.name is null then
        return false;
    end if;
    v_held := v_lease.expires_at > clock_timestamp();
    if not v_lease.taken_up then
        update holdfast.lease_waiter w set passed_over = true where w.token = v_lease.token;
    elsif v_held then
        perform holdfast.lease_tell(v_lease, 'evicted');
    end if;
    perform holdfast.lease_hand_on(p_name, null, null, p_window);
    return v_held;
end $$;

-- What killed processes left behind for names that nobody asks for any more. Locks names by trying: it may hold several.
create function holdfast.lease_sweep(p_window double precision) returns void language plpgsql as $$
declare
    v_name text;
begin
    for v_name in
        select l.name from holdfast.lease l where l.expires_at < clock_timestamp() - interval '1 minute'
        union
        select w.name from holdfast.lease_waiter w where w.stale_at < clock_timestamp() - interval '1 minute'
        limit 100
    loop
        continue when not pg_try_advisory_xact_lock(hashtextextended(v_name, 20010));
        delete from holdfast.lease_waiter w where w.name = v_name and w.stale_at < clock_timestamp();
        perform from holdfast.lease l where l.name = v_name and l.expires_at >= clock_timestamp() for update;
        if not found then
            perform holdfast.lease_hand_on(v_name, null, null, p_window);
        end if;
    end loop;
end $$;
