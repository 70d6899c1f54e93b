-- Ends a gateway: its requests lose their owner, and its leases end. ARGV: prefix, gateway, then pairs of a verifier's
-- instance and the fence of its lease.
local prefix, me = ARGV[1], ARGV[2]
local now = redis.call('TIME')[1]
for _, id in ipairs(redis.call('ZRANGE', prefix .. 'owned:' .. me, 0, -1)) do
  local key = prefix .. 'request:' .. id
  if redis.call('HGET', key, 'owner') == me and redis.call('HGET', key, 'state') == 'open' then
    redis.call('HSET', key, 'owner', '')
    add_unowned(prefix, id, now)
  end
end
for at = 3, #ARGV, 2 do
  local key = prefix .. 'verifier:' .. ARGV[at]
  if redis.call('GET', key) == me .. ' ' .. ARGV[at + 1] then
    redis.call('DEL', key)
  end
end
redis.call('DEL', prefix .. 'owned:' .. me, prefix .. 'gateway:' .. me, prefix .. 'cancels:' .. me)
redis.call('SREM', prefix .. 'gateways', me)
