package org.mqstore.interop;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.FilterSpi;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;

/**
 * SQL92 expressions as the broker compiles and evaluates them.
 *
 * <pre>
 *   {"expression":"a > 5","properties":[{"a":"6"},{"a":"x"},{}]}      a case
 *   {"compiled":true,"results":"TEN"}                                 its row: true, exception, null; F is false
 *   {"compiled":false,"error":"..."}
 * </pre>
 */
final class Filters {
    private final FilterSpi sql = FilterFactory.INSTANCE.get(ExpressionType.SQL92);
    private final Wire wire;

    Filters(Wire wire) {
        this.wire = wire;
    }

    /** A row for each case. */
    JsonObject run(JsonArray cases) {
        for (JsonElement each : cases) {
            wire.row(judged(each.getAsJsonObject()));
        }
        JsonObject result = new JsonObject();
        result.addProperty("cases", cases.size());
        return result;
    }

    private JsonObject judged(JsonObject given) {
        JsonObject row = new JsonObject();
        Expression compiled;
        try {
            compiled = sql.compile(given.get("expression").getAsString());
        } catch (MQFilterException e) {
            row.addProperty("compiled", false);
            row.addProperty("error", String.valueOf(e.getCause()));
            return row;
        }
        StringBuilder results = new StringBuilder();
        for (JsonElement properties : given.getAsJsonArray("properties")) {
            results.append(result(compiled, properties.getAsJsonObject()));
        }
        row.addProperty("compiled", true);
        row.addProperty("results", results.toString());
        return row;
    }

    private static char result(Expression compiled, JsonObject given) {
        Map<String, String> properties = new HashMap<>();
        given.entrySet().forEach(entry -> properties.put(entry.getKey(), entry.getValue().getAsString()));
        Object result;
        try {
            result = compiled.evaluate(new MessageEvaluationContext(properties));
        } catch (Throwable e) {
            // The broker catches the same: ExpressionMessageFilter.
            return 'E';
        }
        return result == null ? 'N' : Boolean.TRUE.equals(result) ? 'T' : 'F';
    }
}
