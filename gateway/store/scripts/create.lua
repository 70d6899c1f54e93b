-- Records a new request; without content, only checks the caller's quota. ARGV: prefix, id, owner ('' for none), edge (the
-- gateway with the client), caller, content, idempotency key, the caller's maximum of unfinished requests and of tokens per
-- minute (0: no limit), seconds to live, maximum of unowned requests, seconds until the deadline ('' for none). Returns
-- 'created' ('free' without content), 'same' (a repeated request), 'other', 'concurrent', 'rate' or 'full'.
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
  -- the last 60 seconds: all of this minute, and the proportional part of the previous one
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
