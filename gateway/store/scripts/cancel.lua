-- Cancels a request. ARGV: prefix, id, end to write if unowned, seconds that finished requests stay, edge: '' to cancel
-- in any case; else a gateway whose last client left, to cancel only if no other live gateway has a client of the
-- request. Returns 'unknown', 'finished', 'kept' (has other clients), 'asked' (the owner will end it) or 'done'.
local prefix, id, ending, retention, edge = unpack(ARGV, 1, 5)
local key = prefix .. 'request:' .. id
local state, owner, caller = unpack(redis.call('HMGET', key, 'state', 'owner', 'caller'))
if not state then
  return 'unknown'
elseif state ~= 'open' then
  return 'finished'
end
if edge ~= '' then
  redis.call('HDEL', key, 'reader:' .. edge)
  for _, field in ipairs(redis.call('HKEYS', key)) do
    local reader = string.match(field, '^reader:(.+)$')
    if reader and redis.call('EXISTS', prefix .. 'gateway:' .. reader) == 1 then
      return 'kept'
    end
  end
end
redis.call('HSET', key, 'cancel', '1')
if owner ~= '' and redis.call('EXISTS', prefix .. 'gateway:' .. owner) == 1 then
  redis.call('SADD', prefix .. 'cancels:' .. owner, id)
  redis.call('EXPIRE', prefix .. 'cancels:' .. owner, 3600)
  return 'asked'
end
redis.call('HSET', key, 'state', 'finished', 'end', ending, 'owner', '')
remove_unowned(prefix, id)
redis.call('ZREM', prefix .. 'owned:' .. owner, id)
redis.call('SREM', prefix .. 'open:' .. caller, id)
for _, kind in ipairs({'request:', 'tokens:', 'logprobs:'}) do
  redis.call('EXPIRE', prefix .. kind .. id, tonumber(retention))
end
return 'done'
