package org.mqstore.interop;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.NoSuchElementException;
import org.apache.commons.cli.CommandLine;
import org.apache.commons.cli.DefaultParser;
import org.apache.commons.cli.Options;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.srvutil.ServerUtil;
import org.apache.rocketmq.tools.command.SubCommand;
import org.apache.rocketmq.tools.command.topic.RemappingStaticTopicSubCommand;
import org.apache.rocketmq.tools.command.topic.UpdateStaticTopicSubCommand;

/** Static topics: RocketMQ's own commands, and clients of logic queues. */
@SuppressWarnings("deprecation") // of the pull consumer, as in Client
final class Logic {
    private static final int PULL_MESSAGES = 32;
    private static final int ATTEMPTS = 120;

    private Logic() {
    }

    /** Runs {@code updateStaticTopic} or {@code remappingStaticTopic} of mqadmin with {@code arguments}. */
    static JsonObject command(String namesrv, JsonObject args) throws Exception {
        SubCommand command = args.get("name").getAsString().equals("updateStaticTopic")
            ? new UpdateStaticTopicSubCommand() : new RemappingStaticTopicSubCommand();
        List<String> given = new ArrayList<>();
        args.getAsJsonArray("arguments").forEach(one -> given.add(one.getAsString()));
        Options options = ServerUtil.buildCommandlineOptions(new Options());
        CommandLine line = ServerUtil.parseCmdLine("mqadmin", given.toArray(new String[0]),
            command.buildCommandlineOptions(options), new DefaultParser());
        PrintStream out = System.out;
        // Standard output has the answers of the driver.
        System.setOut(System.err);
        System.setProperty(MixAll.NAMESRV_ADDR_PROPERTY, namesrv);
        try {
            command.execute(line, options, null);
        } finally {
            System.clearProperty(MixAll.NAMESRV_ADDR_PROPERTY);
            System.setOut(out);
        }
        return new JsonObject();
    }

    /** Sends {@code bodies} to a logic queue. A row has the logic offset. */
    static JsonObject send(DefaultMQProducer producer, JsonObject args, Wire wire) throws Exception {
        String topic = args.get("topic").getAsString();
        JsonArray bodies = args.getAsJsonArray("bodies");
        for (JsonElement body : bodies) {
            SendResult sent = send(producer, topic, args.get("queue_id").getAsInt(), body.getAsString());
            JsonObject row = new JsonObject();
            row.addProperty("status", sent.getSendStatus().toString());
            row.addProperty("queue_id", sent.getMessageQueue().getQueueId());
            row.addProperty("logic_offset", sent.getQueueOffset());
            wire.row(row);
        }
        return new JsonObject();
    }

    /** Sends one message. After a remapping, the client knows the new leader only when it reads the route again. */
    private static SendResult send(DefaultMQProducer producer, String topic, int queueId, String body)
        throws Exception {
        MQClientInstance client = producer.getDefaultMQProducerImpl().getMqClientFactory();
        for (int attempt = 1;; attempt++) {
            try {
                client.updateTopicRouteInfoFromNameServer(topic);
                MessageQueue queue = queue(producer.fetchPublishMessageQueues(topic), queueId);
                return producer.send(new Message(topic, body.getBytes("UTF-8")), queue);
            } catch (MQBrokerException | NoSuchElementException e) {
                if (attempt == ATTEMPTS) {
                    throw e;
                }
                Thread.sleep(500);
            }
        }
    }

    /** Every message of all logic queues of {@code topic}: a row with the queue, the logic offset and the body. */
    static JsonObject consume(DefaultMQPullConsumer consumer, JsonObject args, Wire wire) throws Exception {
        String topic = args.get("topic").getAsString();
        long messages = 0;
        consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory()
            .updateTopicRouteInfoFromNameServer(topic);
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchSubscribeMessageQueues(topic));
        queues.sort(Comparator.comparingInt(MessageQueue::getQueueId));
        for (MessageQueue queue : queues) {
            long offset = minOffset(consumer, queue);
            long end = consumer.maxOffset(queue);
            for (int attempts = 0; offset < end && attempts < 10_000; attempts++) {
                PullResult pulled = consumer.pull(queue, "*", offset, PULL_MESSAGES);
                if (pulled.getMsgFoundList() != null) {
                    messages += rows(queue, pulled.getMsgFoundList(), wire);
                }
                offset = pulled.getNextBeginOffset();
            }
        }
        JsonObject result = new JsonObject();
        result.addProperty("messages", messages);
        result.addProperty("queues", queues.size());
        return result;
    }

    /**
     * Commits the offset after the first {@code count} messages of each logic queue, for the group of the consumer. A row
     * has the queue, and the offset that the brokers answer.
     */
    static JsonObject commit(DefaultMQPullConsumer consumer, JsonObject args, Wire wire) throws Exception {
        String topic = args.get("topic").getAsString();
        int count = args.get("count").getAsInt();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            long offset = minOffset(consumer, queue);
            for (int left = count; left > 0;) {
                PullResult pulled = consumer.pull(queue, "*", offset, left);
                left -= pulled.getMsgFoundList() == null ? 0 : pulled.getMsgFoundList().size();
                offset = pulled.getNextBeginOffset();
            }
            consumer.getDefaultMQPullConsumerImpl().getOffsetStore()
                .updateConsumeOffsetToBroker(queue, offset, false);
            JsonObject row = new JsonObject();
            row.addProperty("queue_id", queue.getQueueId());
            row.addProperty("logic_offset", consumer.fetchConsumeOffset(queue, true));
            wire.row(row);
        }
        return new JsonObject();
    }

    /** The minimum of a queue. Its broker asks the one with the first part, whose address it reads every 30 seconds. */
    private static long minOffset(DefaultMQPullConsumer consumer, MessageQueue queue) throws Exception {
        for (int attempt = 1;; attempt++) {
            try {
                return consumer.minOffset(queue);
            } catch (MQClientException e) {
                if (attempt == ATTEMPTS) {
                    throw e;
                }
                Thread.sleep(500);
            }
        }
    }

    private static long rows(MessageQueue queue, List<MessageExt> found, Wire wire) throws IOException {
        for (MessageExt message : found) {
            JsonObject row = new JsonObject();
            row.addProperty("queue_id", queue.getQueueId());
            row.addProperty("logic_offset", message.getQueueOffset());
            row.addProperty("body", new String(message.getBody(), "UTF-8"));
            wire.row(row);
        }
        return found.size();
    }

    private static MessageQueue queue(List<MessageQueue> queues, int queueId) {
        return queues.stream().filter(queue -> queue.getQueueId() == queueId).findFirst().orElseThrow();
    }
}
