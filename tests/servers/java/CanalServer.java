import ch.qos.logback.classic.Level;
import ch.qos.logback.classic.Logger;
import com.alibaba.otter.canal.instance.manager.CanalInstanceWithManager;
import com.alibaba.otter.canal.instance.manager.model.Canal;
import com.alibaba.otter.canal.instance.manager.model.CanalParameter;
import com.alibaba.otter.canal.instance.manager.model.CanalParameter.*;
import com.alibaba.otter.canal.protocol.SecurityUtil;
import com.alibaba.otter.canal.server.embedded.CanalServerWithEmbedded;
import com.alibaba.otter.canal.server.netty.CanalServerWithNetty;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.slf4j.LoggerFactory;

/**
 * A Canal server with one destination, on 127.0.0.1, for tests: Canal's own libraries without its deployer, which is
 * not in Maven's repositories.
 *
 * <p>Arguments are name=value: port, destination, mysqlPort, mysqlUser, mysqlPassword, dataDir (positions are kept
 * there, so that it can be killed and started again), and if wanted position (JSON, where a new destination begins;
 * else at the end of the binlog), filter, gtid (true), and user and password of clients.
 */
public final class CanalServer {
    private CanalServer() {}

    public static void main(String[] arguments) throws Exception {
        ((Logger) LoggerFactory.getLogger(Logger.ROOT_LOGGER_NAME)).setLevel(Level.WARN);
        Map<String, String> said = new HashMap<>();
        for (String argument : arguments) {
            int end = argument.indexOf('=');
            said.put(argument.substring(0, end), argument.substring(end + 1));
        }
        CanalServerWithEmbedded embedded = CanalServerWithEmbedded.instance();
        embedded.setCanalInstanceGenerator(destination -> {
            Canal canal = new Canal();
            canal.setId(1L);
            canal.setName(destination);
            canal.setCanalParameter(parameters(said));
            return new CanalInstanceWithManager(canal, said.getOrDefault("filter", ".*\\..*"));
        });
        if (said.containsKey("user")) {
            embedded.setUser(said.get("user"));
            embedded.setPasswd(SecurityUtil.scrambleGenPass(said.get("password").getBytes(StandardCharsets.UTF_8)));
        }
        CanalServerWithNetty server = CanalServerWithNetty.instance();
        server.setIp("127.0.0.1");
        server.setPort(Integer.parseInt(said.get("port")));
        embedded.start();
        embedded.start(said.get("destination"));
        server.start();
        Thread.currentThread().join();
    }

    private static CanalParameter parameters(Map<String, String> said) {
        InetSocketAddress mysql = new InetSocketAddress("127.0.0.1", Integer.parseInt(said.get("mysqlPort")));
        CanalParameter parameters = new CanalParameter();
        parameters.setDbAddresses(List.of(mysql));
        parameters.setGroupDbAddresses(List.of(List.of(new DataSourcing(SourcingType.MYSQL, mysql))));
        parameters.setDbUsername(said.get("mysqlUser"));
        parameters.setDbPassword(said.get("mysqlPassword"));
        // Of servers that read one MySQL each needs its own.
        parameters.setSlaveId(Long.parseLong(said.get("port")));
        parameters.setMetaMode(MetaMode.LOCAL_FILE);
        parameters.setIndexMode(IndexMode.META);
        parameters.setDataDir(said.get("dataDir"));
        parameters.setMetaFileFlushPeriod(100);
        parameters.setDetectingEnable(false);
        parameters.setGtidEnable(Boolean.parseBoolean(said.get("gtid")));
        if (said.containsKey("position")) {
            parameters.setPositions(List.of(said.get("position")));
        }
        return parameters;
    }
}
