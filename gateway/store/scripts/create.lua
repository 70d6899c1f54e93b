-- Records a new request; without content it looks at the caller's quota alone. ARGV: prefix, id, owner ('' for none), edge, caller, content, idempotency key, most unfinished of the
-- caller, its most tokens per minute, seconds to live, most requests without an owner,
-- seconds until its deadline ('' for none). Returns 'created', 'same',
-- 'other', 'concurrent', 'rate' or 'full'; without content 'free' in the place of 'created'.
local prefix, id, owner, edge, caller, content, idempotency_key = unpack(ARGV, 1, 7)
local most_open, most_tokens, ttl, most_unowned, seconds = unpack(ARGV, 8, 12)
most_open, most_tokens = tonumber(most_open), tonumber(most_tokens)
local time = redis.call('TIME')
local now = time[1] .. '.' .. string.format('%06d', time[2])
local key = prefix .. 'request:' .. id
local known = redis.call('HGET', key, 'idempotency_key')
if known then
  return known == idempotency_key and 'same' or 'other'
end
if most_open > 0 and redis.call('SCARD', prefix .. 'open:' .. caller) >= most_open then
  return 'concurrent'
end
if most_tokens > 0 then
  local minute = math.floor(time[1] / 60)
  local used = tonumber(redis.call('GET', prefix .. 'rate:' .. caller .. ':' .. minute) or 0)
  local before = tonumber(redis.call('GET', prefix .. 'rate:' .. caller .. ':' .. (minute - 1)) or 0)
  -- the minute that ends now: all of this one and the part of the one before that it still covers
  if used + before * (1 - (time[1] % 60) / 60) >= most_tokens then
    return 'rate'
  end
end
if content == '' then
  return 'free'
end
if owner == '' and redis.call('ZCARD', prefix .. 'unowned') >= tonumber(most_unowned) then
  return 'full'
end
redis.call('HSET', key, 'idempotency_key', idempotency_key,
  'content', content, 'caller', caller, 'owner', owner, 'reader:' .. edge, '1',
  'created', now, 'state', 'open',
  'adoption', 1)
if seconds ~= '' then
  redis.call('HSET', key, 'deadline', string.format('%.3f', now + seconds))
end
redis.call('EXPIRE', key, ttl)
redis.call('DEL', prefix .. 'tokens:' .. id, prefix .. 'logprobs:' .. id)
if owner == '' then
  add_unowned(prefix, id, now)
else
  redis.call('ZADD', prefix .. 'owned:' .. owner, now, id)
  redis.call('SADD', prefix .. 'gateways', owner)
end
redis.call('SADD', prefix .. 'open:' .. caller, id)
redis.call('EXPIRE', prefix .. 'open:' .. caller, ttl)
return 'created'
