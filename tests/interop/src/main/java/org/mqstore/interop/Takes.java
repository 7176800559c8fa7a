package org.mqstore.interop;

import com.google.common.util.concurrent.Uninterruptibles;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.constant.ConsumeInitMode;
import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;

/** Clients that take messages and do not finish all: pop without acknowledgement, or a push consumer that refuses. */
final class Takes {
    private static final long TIMEOUT_MILLIS = 20_000;
    private static final long POLL_MILLIS = 1_000;

    private Takes() {
    }

    /** Pops {@code count} messages of any queue of a topic and acknowledges the first {@code ack} of them. */
    static List<MessageExt> pop(MQClientAPIImpl api, String broker, String brokerName, JsonObject args)
        throws Exception {
        int count = args.get("count").getAsInt();
        List<MessageExt> popped = new ArrayList<>();
        long deadline = Client.deadline(args);
        while (popped.size() < count) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("only " + popped.size() + " messages were popped");
            }
            PopMessageRequestHeader header = new PopMessageRequestHeader();
            header.setConsumerGroup(args.get("group").getAsString());
            header.setTopic(args.get("topic").getAsString());
            header.setQueueId(-1);
            header.setMaxMsgNums(count - popped.size());
            header.setInvisibleTime(args.get("invisible_ms").getAsLong());
            header.setInitMode(ConsumeInitMode.MIN);
            header.setExpType(ExpressionType.TAG);
            header.setExp("*");
            header.setOrder(false);
            header.setPollTime(POLL_MILLIS);
            header.setBornTime(System.currentTimeMillis());
            CompletableFuture<PopResult> answer = new CompletableFuture<>();
            api.popMessageAsync(brokerName, broker, header, TIMEOUT_MILLIS, new PopCallback() {
                @Override
                public void onSuccess(PopResult result) {
                    answer.complete(result);
                }

                @Override
                public void onException(Throwable error) {
                    answer.completeExceptionally(error);
                }
            });
            List<MessageExt> found = answer.get(TIMEOUT_MILLIS, TimeUnit.MILLISECONDS).getMsgFoundList();
            if (found != null) {
                popped.addAll(found);
            }
        }
        for (MessageExt message : popped.subList(0, args.get("ack").getAsInt())) {
            acknowledge(api, broker, args, message);
        }
        return popped;
    }

    private static void acknowledge(MQClientAPIImpl api, String broker, JsonObject args, MessageExt message)
        throws Exception {
        String handle = message.getProperty(MessageConst.PROPERTY_POP_CK);
        String[] parts = ExtraInfoUtil.split(handle);
        String group = args.get("group").getAsString();
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        header.setTopic(ExtraInfoUtil.getRealTopic(parts, args.get("topic").getAsString(), group));
        header.setQueueId(ExtraInfoUtil.getQueueId(parts));
        header.setOffset(ExtraInfoUtil.getQueueOffset(parts));
        header.setConsumerGroup(group);
        header.setExtraInfo(handle);
        CompletableFuture<AckResult> answer = new CompletableFuture<>();
        api.ackMessageAsync(broker, TIMEOUT_MILLIS, new AckCallback() {
            @Override
            public void onSuccess(AckResult result) {
                answer.complete(result);
            }

            @Override
            public void onException(Throwable error) {
                answer.completeExceptionally(error);
            }
        }, header);
        answer.get(TIMEOUT_MILLIS, TimeUnit.MILLISECONDS);
    }

    /**
     * Makes a push consumer refuse the first {@code count} messages of a topic, for a redelivery after a second. The
     * consumer holds all later messages, unanswered, until {@code over}: a pull may be in progress when the consumer is
     * suspended, and the refused messages must stay in the retry topic.
     */
    static DefaultMQPushConsumer refuse(DefaultMQPushConsumer member, JsonObject args, CountDownLatch over)
        throws Exception {
        int count = args.get("count").getAsInt();
        AtomicInteger refused = new AtomicInteger();
        member.subscribe(args.get("topic").getAsString(), "*");
        member.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            context.setDelayLevelWhenNextConsume(1);
            int before = refused.getAndAdd(messages.size());
            if (before >= count) {
                Uninterruptibles.awaitUninterruptibly(over);
            } else if (before + messages.size() >= count) {
                member.suspend();
            }
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        member.start();
        return member;
    }

    /** The retry topic of a push consumer's group. */
    static String retryTopic(String group) {
        return MixAll.getRetryTopic(group);
    }
}
