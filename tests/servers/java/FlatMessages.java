import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONWriter;
import com.alibaba.otter.canal.connector.core.producer.MQMessageUtils;
import com.alibaba.otter.canal.connector.core.producer.MQMessageUtils.EntryRowData;
import com.alibaba.otter.canal.protocol.CanalEntry.Entry;
import com.alibaba.otter.canal.protocol.CanalEntry.RowChange;
import com.alibaba.otter.canal.protocol.FlatMessage;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * What Canal's producers make of entries with flatMessage=true. Entries come on standard input, each after its length
 * in four bytes; messages go out a line each.
 */
public final class FlatMessages {
    private FlatMessages() {}

    public static void main(String[] arguments) throws Exception {
        DataInputStream in = new DataInputStream(System.in);
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        while (true) {
            byte[] content;
            try {
                content = new byte[in.readInt()];
            } catch (EOFException end) {
                break;
            }
            in.readFully(content);
            Entry entry = Entry.parseFrom(content);
            EntryRowData[] data = {new EntryRowData()};
            data[0].entry = entry;
            data[0].rowChange = RowChange.parseFrom(entry.getStoreValue());
            for (FlatMessage message : MQMessageUtils.messageConverter(data, 1)) {
                out.println(JSON.toJSONString(
                        message, JSONWriter.Feature.WriteNulls, JSONWriter.Feature.LargeObject));
            }
        }
        out.flush();
    }
}
