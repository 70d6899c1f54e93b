-- Removes a gateway as owner of requests. ARGV: prefix, gateway, '1' if they were adopted but could not run (their wait
-- then counts from before the adoption), then ids.
local prefix, me = ARGV[1], ARGV[2]
local now = redis.call('TIME')[1]
for at = 4, #ARGV do
  local key = prefix .. 'request:' .. ARGV[at]
  local owner, state = unpack(redis.call('HMGET', key, 'owner', 'state'))
  redis.call('ZREM', prefix .. 'owned:' .. me, ARGV[at])
  if owner == me and state == 'open' then
    redis.call('HSET', key, 'owner', '')
    local since = ARGV[3] == '1' and redis.call('HGET', key, 'since')
    add_unowned(prefix, ARGV[at], since or now)
  end
end
