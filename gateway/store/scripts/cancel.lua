-- Wants a request cancelled. ARGV: prefix, id, the end to write if nobody owns it, seconds that finished requests
-- stay, edge: '' for anybody's wish, else the gateway whose last client left: then only if no other gateway has had a
-- client of it since. Returns 'unknown', 'finished', 'kept', 'asked' (its owner will do it) or 'done'.
local prefix, id, ending, retention, edge = unpack(ARGV, 1, 5)
local key = prefix .. 'request:' .. id
local state, owner, caller, seen = unpack(redis.call('HMGET', key, 'state', 'owner', 'caller', 'edge'))
if not state then
  return 'unknown'
elseif state ~= 'open' then
  return 'finished'
elseif edge ~= '' and seen ~= edge then
  return 'kept'
end
redis.call('HSET', key, 'cancel', '1')
if owner ~= '' and redis.call('EXISTS', prefix .. 'gateway:' .. owner) == 1 then
  redis.call('SADD', prefix .. 'cancels:' .. owner, id)
  redis.call('EXPIRE', prefix .. 'cancels:' .. owner, 3600)
  return 'asked'
end
redis.call('HSET', key, 'state', 'finished', 'end', ending)
redis.call('ZREM', prefix .. 'unowned', id)
redis.call('ZREM', prefix .. 'owned:' .. owner, id)
redis.call('SREM', prefix .. 'open:' .. caller, id)
for _, kind in ipairs({'request:', 'tokens:', 'logprobs:'}) do
  redis.call('EXPIRE', prefix .. kind .. id, tonumber(retention))
end
return 'done'
