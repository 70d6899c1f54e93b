-- Removes a request that its gateway refused just after recording it. ARGV: prefix, id, gateway.
local prefix, id, me = unpack(ARGV)
local key = prefix .. 'request:' .. id
local owner, caller = unpack(redis.call('HMGET', key, 'owner', 'caller'))
if owner == me then
  redis.call('ZREM', prefix .. 'owned:' .. me, id)
  redis.call('SREM', prefix .. 'open:' .. caller, id)
  redis.call('DEL', key, prefix .. 'tokens:' .. id, prefix .. 'logprobs:' .. id)
end
