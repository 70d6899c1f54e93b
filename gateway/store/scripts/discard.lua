-- Removes a request that its gateway cannot run. ARGV: prefix, id, gateway, adoption: a later adoption stays.
local prefix, id, me, adoption = unpack(ARGV)
local key = prefix .. 'request:' .. id
local owner, caller, number = unpack(redis.call('HMGET', key, 'owner', 'caller', 'adoption'))
if owner == me and number == adoption then
  redis.call('ZREM', prefix .. 'owned:' .. me, id)
  redis.call('SREM', prefix .. 'open:' .. caller, id)
  redis.call('DEL', key, prefix .. 'tokens:' .. id, prefix .. 'logprobs:' .. id)
end
