-- Takes requests that nobody owns. Those of gateways whose lease is gone lose their owner first. ARGV: prefix, gateway,
-- how many at most, then the models that it can serve; a request that began with another model is left.
-- Returns their ids: callers in turn, of each the oldest first, so that one caller's many do not keep others from being
-- looked at. Each adoption has a number, which every write names.
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
  local state, created, model, caller = unpack(redis.call('HMGET', key, 'state', 'created', 'model', 'caller'))
  if state ~= 'open' then
    redis.call('ZREM', unowned, request)
  elseif not model or models[model] then
    found[#found + 1] = {id = request, created = tonumber(created), caller = caller}
  end
end
table.sort(found, function(a, b) return a.created < b.created end)
local turns = {}
for _, request in ipairs(found) do
  turns[request.caller] = (turns[request.caller] or 0) + 1
  request.turn = turns[request.caller]
end
table.sort(found, function(a, b)
  if a.turn ~= b.turn then
    return a.turn < b.turn
  end
  return a.created < b.created
end)
local taken = {}
for at = 1, math.min(most, #found) do
  local request, created = found[at].id, found[at].created
  local since = redis.call('ZSCORE', unowned, request)
  redis.call('HSET', prefix .. 'request:' .. request, 'owner', me, 'since', since)
  redis.call('HINCRBY', prefix .. 'request:' .. request, 'adoption', 1)
  redis.call('ZREM', unowned, request)
  redis.call('ZADD', prefix .. 'owned:' .. me, created, request)
  if redis.call('HGET', prefix .. 'request:' .. request, 'cancel') then  -- its owner before was asked, and is gone
    redis.call('SADD', prefix .. 'cancels:' .. me, request)
    redis.call('EXPIRE', prefix .. 'cancels:' .. me, 3600)
  end
  taken[at] = request
end
return taken
