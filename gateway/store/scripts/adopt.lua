-- Takes requests that nobody owns. Those of gateways whose lease is gone lose their owner first. ARGV: prefix, gateway,
-- how many at most, then the models that it can serve; a request that began with another model is left.
-- Returns their ids, the oldest first. Each adoption has a number, which every write names.
local prefix, me, most = ARGV[1], ARGV[2], tonumber(ARGV[3])
local unowned = prefix .. 'unowned'
local now = redis.call('TIME')[1]
for _, id in ipairs(redis.call('SMEMBERS', prefix .. 'gateways')) do
  if redis.call('EXISTS', prefix .. 'gateway:' .. id) == 0 then
    for _, request in ipairs(redis.call('ZRANGE', prefix .. 'owned:' .. id, 0, -1)) do
      local key = prefix .. 'request:' .. request
      if redis.call('HGET', key, 'owner') == id then
        redis.call('HSET', key, 'owner', '')
        redis.call('ZADD', unowned, now, request)
      end
    end
    redis.call('DEL', prefix .. 'owned:' .. id)
  end
end
local models = {}
for at = 4, #ARGV do
  models[ARGV[at]] = true
end
local found = {}
for _, request in ipairs(redis.call('ZRANGE', unowned, 0, -1)) do
  local key = prefix .. 'request:' .. request
  local state, created, model = unpack(redis.call('HMGET', key, 'state', 'created', 'model'))
  if state ~= 'open' then
    redis.call('ZREM', unowned, request)
  elseif not model or models[model] then
    found[#found + 1] = {request, tonumber(created)}
  end
end
table.sort(found, function(a, b) return a[2] < b[2] end)
local taken = {}
for at = 1, math.min(most, #found) do
  local request, created = unpack(found[at])
  redis.call('HSET', prefix .. 'request:' .. request, 'owner', me)
  redis.call('HINCRBY', prefix .. 'request:' .. request, 'adoption', 1)
  redis.call('ZREM', unowned, request)
  redis.call('ZADD', prefix .. 'owned:' .. me, created, request)
  taken[at] = request
end
return taken
