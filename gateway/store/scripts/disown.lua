-- Removes a gateway as owner of requests. ARGV: prefix, gateway, '1' if they were adopted but could not run (their wait
-- then counts from before the adoption), then pairs of id and adoption: a later adoption keeps its owner.
local prefix, me = ARGV[1], ARGV[2]
local now = redis.call('TIME')[1]
for at = 4, #ARGV, 2 do
  local id, adoption = ARGV[at], tonumber(ARGV[at + 1])
  local key = prefix .. 'request:' .. id
  local owner, state, number = unpack(redis.call('HMGET', key, 'owner', 'state', 'adoption'))
  if owner ~= me or tonumber(number) == adoption then
    redis.call('ZREM', prefix .. 'owned:' .. me, id)
    if owner == me and state == 'open' then
      redis.call('HSET', key, 'owner', '')
      local since = ARGV[3] == '1' and redis.call('HGET', key, 'since')
      add_unowned(prefix, id, since or now)
    end
  end
end
